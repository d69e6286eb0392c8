"""Running a verb: an error that the user can mend is one message and exit status 2."""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import typer

from dpft.cli.interrupts import Stopped, heed_by_exception, speaks
from dpft.config.errors import NO_STEP
from dpft.report.terminal import secho

# A disk that is full or may not be written to, which any verb may meet anywhere.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_SAME = "the same command"
T = TypeVar("T")


def guarded(verb: Callable[..., None], *, hub: bool, resumes: bool) -> Callable[..., None]:
    """The verb with the same options, and messages for its errors.

    Args:
        verb: the function; its ``arguments``, if it has any, may hold settings and flags of Hydra.
        hub: whether it may ask the model hub for something.
        resumes: whether the same command continues what it began.
    """

    @functools.wraps(verb)
    def run(**options: Any) -> None:
        typed = options.get("arguments") or ()
        # Help asks no hub, and a name server may take seconds to say that there is none.
        if hub and not {"--help", "-h"}.intersection(typed):
            from dpft.config.offline import stay_offline_if_unreachable

            stay_offline_if_unreachable()
        again = f"{_SAME}{' without force=true' if 'force=true' in typed else ''} continues"
        heed_by_exception()
        try:
            _run(verb, options, again if resumes else None)
        except KeyboardInterrupt as error:
            # While another error is told; Typer would end with 130, whatever the signal.
            sys.exit(_status(error))

    return run


def reporting_errors(work: Callable[[T], T], given: T) -> T:
    """What the work makes of it; an error that the user can mend is one message, as of a verb."""
    from dpft.config.errors import DpftError

    try:
        return work(given)
    except DpftError as error:
        refuse(str(error))


def tell_of_files(error: OSError) -> NoReturn:
    """End with a message, as of a verb, if the user can mend it; else it is raised."""
    said = _of_files(error)
    if said is None:
        raise error
    refuse(said)


def alone(verb: str) -> None:
    """Refuse to be one of several processes that torchrun started, each of which would do it all.

    Raises:
        ConfigError: if this process is one of several.
    """
    from dpft.parallel.launch import launched

    if launched() > 1:
        from dpft.config.errors import ConfigError

        raise ConfigError(
            f"dpft {verb} with {launched()} processes; expected one: start it without torchrun"
        )


def _run(verb: Callable[..., None], options: dict[str, Any], again: str | None) -> None:
    from dpft.config.errors import DpftError

    try:
        verb(**options)
    except DpftError as error:
        refuse(str(error))
    except OSError as error:
        said = _of_files(error)
        if said is None:
            raise
        refuse(said)
    except (MemoryError, RuntimeError) as error:
        from dpft.runs.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        refuse(
            f"out of memory ({' '.join(str(error).split()) or 'of the machine'}); free some, or "
            "take a machine with more, and type the same command again"
        )
    except KeyboardInterrupt as error:
        _stop(error, again)
    except Exception as error:
        # A library that is interrupted amid its own clearing up may raise something else.
        interrupt = _interrupt_behind(error)
        if interrupt is None:
            raise
        _stop(interrupt, again)


def _stop(error: KeyboardInterrupt, again: str | None) -> NoReturn:
    if speaks():
        # What is kept is reported by who kept it. Without a report it is not known here.
        kept = dict.fromkeys(getattr(error, "__notes__", ()))
        if again is None or NO_STEP in kept:
            said = "; ".join([*kept, f"{_SAME} begins anew"])
        elif kept:
            said = f"{again} where it left off ({'; '.join(kept)})"
        else:
            said = f"{again} what is kept, or begins anew if nothing is"
        secho(f"dpft: stopped; {said}", err=True)
    sys.exit(_status(error))


def _status(error: KeyboardInterrupt) -> int:
    return error.status if isinstance(error, Stopped) else 130


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that an error was raised from, or while it was dealt with."""
    seen: list[BaseException | None] = [error]
    for one in seen:
        if isinstance(one, KeyboardInterrupt):
            return one
        if one is not None:
            seen += [x for x in (one.__cause__, one.__context__) if x not in seen]
    return None


def refuse(said: str) -> NoReturn:
    """End with one message and exit status 2."""
    secho(f"dpft: {said}", fg=typer.colors.RED, err=True)
    sys.exit(2)


def _of_files(error: OSError) -> str | None:
    """What an error of the system means, if it is one of files: any verb may meet it anywhere."""
    if error.errno in _DISK:
        return (
            f"{error.filename or 'a file'}: {error.strerror}; free some space there, or give a "
            "folder that may be written to (runs_dir=DIR, --out FILE), and type the same command "
            "again"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error}; type ulimit -n 1024, and then the same command again"
    if error.filename is None:
        return None
    if isinstance(error, FileExistsError | NotADirectoryError):
        return (
            f"{error.filename}: {error.strerror}; a file is where a folder is to be made, or a "
            "folder where a file is: give another path"
        )
    return (
        f"{error.filename}: {error.strerror}; expected it to be there, and of its usual kind. If "
        "it was moved or removed meanwhile, put it back, and type the same command again"
    )
