"""How a chat template writes turns, and the turns of a text that is written so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dpft.config.errors import DataError

Turns = Sequence[tuple[str, str]]

# Of private use: in no text that anybody wrote, and changed by no template.
_MARK = "\ue0d7{}\ue0d7"
# Between them every order of roles that a template may take.
_ORDERS = (
    ("system", "user", "assistant", "user", "assistant"),
    ("user", "assistant", "user", "assistant"),
    ("user", "user", "assistant", "assistant"),
    ("system", "assistant"),
    ("assistant",),
)


@dataclass
class ChatForm:
    """What a template puts around the texts of turns, found by rendering turns of known texts.

    Attributes:
        render: turns as the template writes them. It raises DataError for turns that it refuses.
        special: tokens as text that no turn may hold.
        starts: by role, what precedes the first text.
        between: by the roles of two turns that follow each other, what stands between their texts.
        tail: what follows the text of a last answer.
    """

    render: Callable[[Turns], str]
    special: Collection[str] = ()
    starts: dict[str, str] = field(default_factory=dict)
    between: dict[tuple[str, str], str] = field(default_factory=dict)
    tail: str = ""

    def __post_init__(self) -> None:
        for roles in _ORDERS:
            turns = [(role, _MARK.format(n)) for n, role in enumerate(roles)]
            try:
                rest = self.render(turns)
            except DataError:
                continue
            pieces = []
            for _, mark in turns:
                piece, found, rest = rest.partition(mark)
                if not found:
                    break
                pieces.append(piece)
            else:
                self.starts.setdefault(roles[0], pieces[0])
                for pair, piece in zip(pairwise(roles), pieces[1:], strict=True):
                    self.between.setdefault(pair, piece)
                self.tail = rest

    def opening(self, system: str) -> str:
        """What stands before the first words of a user who follows this system prompt.

        Without blanks at its end, which a tokenizer joins to the first word.
        """
        marked = self.render([("system", system), ("user", _MARK), ("assistant", "x")])
        return marked.partition(_MARK)[0].rstrip(" ")

    def read(self, text: str) -> Turns | None:
        """The turns of a text, the last an answer; None if it is not written as the template does.

        Rendered again the turns are the text, character for character.
        """
        fitting = [role for role, start in self.starts.items() if text.startswith(start)]
        if not fitting:
            return None
        role = max(fitting, key=lambda one: len(self.starts[one]))
        place, turns = len(self.starts[role]), list[tuple[str, str]]()
        while True:
            following = [
                (at, -len(piece), second)
                for (first, second), piece in self.between.items()
                if first == role and (at := text.find(piece, place)) >= 0
            ]
            if not following:
                break
            at, less, second = min(following)
            turns.append((role, text[place:at]))
            place, role = at - less, second
        last = len(text) - len(self.tail)
        if role != "assistant" or last < place or not text.endswith(self.tail):
            return None
        turns.append((role, text[place:last]))
        if any(not said.strip() or any(s in said for s in self.special) for _, said in turns):
            return None
        try:
            return turns if len(turns) > 1 and self.render(turns) == text else None
        except DataError:
            return None
