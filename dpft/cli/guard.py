"""Run a verb: an error that the user can correct is one message and exit status 2."""

import errno
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from dpft.cli.interrupts import Stopped, raise_at_signals, restore_signals, speaks
from dpft.config.errors import NO_STEP, ConfigError, DpftError
from dpft.parallel.launch import launched
from dpft.report.terminal import secho

# The disk is full or read-only.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def guarded(verb: Callable[..., None], name: str, traits: str = "") -> Callable[..., None]:
    """Return the verb with the same options, which prints a message for each of its errors.

    ``verbs.toml`` explains ``traits``.
    """

    @functools.wraps(verb)
    def run(**options: Any) -> None:
        try:
            _run(verb, name, traits, options)
        except Stopped as error:  # while the verb ended; Typer would report it as Ctrl-C
            sys.exit(error.status)

    return run


def _run(verb: Callable[..., None], name: str, traits: str, options: dict[str, Any]) -> None:
    typed = options.get("arguments") or ()
    raise_at_signals()
    try:
        with one_message():
            if "alone" in traits and launched() > 1:
                raise ConfigError(
                    f"dpft {name} with {launched()} processes; expected one: start it without "
                    "torchrun"
                )
            # Help asks no hub, and a name server may take seconds to say that there is none.
            if "hub" in traits and not {"--help", "-h"}.intersection(typed):
                from dpft.config import offline

                offline.stay_offline_if_unreachable()
            verb(**options)
    except (KeyboardInterrupt, Exception) as error:
        # A library that is interrupted while it cleans up may raise something else.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        _stop(cause, "resumes" in traits, "force=true" in typed)
    finally:
        restore_signals()


@contextmanager
def one_message() -> Iterator[None]:
    """End with one message and status 2 where the block raises what the user can correct."""
    try:
        yield
    except DpftError as error:
        refuse(str(error))
    except OSError as error:
        if error.errno in _DISK:
            writable = "a writable folder (runs_dir=DIR, --out FILE, or the variable TMPDIR)"
            advice = f"free some space there, or give {writable}"
        elif error.filename is not None:
            put = "" if isinstance(error, FileExistsError) else "put the file there, or "
            advice = f"{put}give another path"
        else:
            raise
        what = f"{error.filename or 'a file'}: {error.strerror}"
        refuse(f"{what}; {advice}, and type the same command again")
    except (MemoryError, RuntimeError) as error:
        from dpft.runs.environment import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        refuse(
            f"out of memory ({' '.join(str(error).split()) or 'of the machine'}); free some, or "
            "take a machine with more, and type the same command again"
        )


def refuse(message: str) -> NoReturn:
    """End with one message and exit status 2."""
    secho(f"dpft: {message}", fg=typer.colors.RED, err=True)
    sys.exit(2)


def _stop(error: KeyboardInterrupt, resumes: bool, forced: bool) -> NoReturn:
    """End with one sentence, unless another rank prints it, and the status of the signal."""
    if speaks():
        # What is kept is reported by the code that kept it.
        kept = list(dict.fromkeys(getattr(error, "__notes__", ())))
        again = f"the same command{' without force=true' if forced else ''} continues"
        if not resumes or NO_STEP in kept:
            said = "; ".join([*kept, "the same command starts over"])
        elif kept:
            said = f"{again} where it left off ({'; '.join(kept)})"
        else:
            said = f"{again} from what is kept, or starts over if nothing is"
        secho(f"dpft: stopped; {said}", err=True)
    sys.exit(error.status if isinstance(error, Stopped) else 130)
