"""Generated restaurant descriptions in the file format of the E2E NLG challenge.

Everything here is made up: restaurants, landmarks and sentences. Only the format is the
challenge's: its eight attributes, the style of their values, and CSV files with the columns ``mr``
and ``ref``.

There are two parts. *Public* text (many wordings, many made-up names) pretrains the bundled tiny
model. *Private* text (one house style, other restaurants and landmarks, fewer values) is what the
offline demo fine-tunes on. The house style has fixed habits (place first, verdicts from
"our readers", a sign-off), so that a model that saw only the public part scores low on it, and
gains even when its gradients are noisy.
"""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

Part = Literal["public", "private"]
Split = Literal["train", "dev", "test"]
Record = dict[str, str]  # attribute -> value, in the order of ATTRIBUTES


def _words(text: str, sep: str = " ") -> tuple[str, ...]:
    return tuple(text.split(sep))


# How often an attribute other than the name is present.
_PRESENCE = {
    "eatType": 0.6,
    "food": 0.75,
    "priceRange": 0.65,
    "customer rating": 0.65,
    "area": 0.7,
    "familyFriendly": 0.6,
    "near": 0.55,
}
ATTRIBUTES = ("name", *_PRESENCE)
_PRICES = _words("cheap, moderate, high, less than £20, £20-25, more than £30", ", ")
_RATINGS = _words("low, average, high, 1 out of 5, 3 out of 5, 5 out of 5", ", ")
VALUES: dict[Part, dict[str, tuple[str, ...]]] = {
    "public": {
        "eatType": _words(
            "pub, coffee shop, restaurant, wine bar, diner, tea room, bistro, snack bar", ", "
        ),
        "food": _words(
            "English, French, Italian, Japanese, Indian, Chinese, Fast food, Spanish, Greek, "
            "Turkish, Thai, Mexican, Lebanese, Korean",
            ", ",
        ),
        "priceRange": _PRICES,
        "customer rating": _RATINGS,
        "area": _words(
            "riverside, city centre, market square, station quarter, old town, harbour", ", "
        ),
        "familyFriendly": ("yes", "no"),
    },
    "private": {
        "eatType": ("pub", "coffee shop", "restaurant", "tea room", "bistro"),
        "food": ("English", "French", "Italian", "Indian", "Thai", "Mexican", "Lebanese"),
        "priceRange": _PRICES,
        "customer rating": _RATINGS,
        "area": ("riverside", "city centre", "old town", "harbour"),
        "familyFriendly": ("yes", "no"),
    },
}

# --- names --------------------------------------------------------------------------------------
_PUBLIC_FIRST = _words(
    "Amber Ancient Autumn Bitter Brass Bright Broken Bronze Burning Busy Calm Cherry "
    "Clever Copper Coral Cosy Crimson Crooked Crystal Dancing Distant Dusty Early Eastern "
    "Emerald Empty Evening Fallen Favourite Flying Forest Fragrant Friendly Frosty Gentle "
    "Gilded Glass Grand Happy Hidden Hollow Honest Honey Hungry Humble Iron Ivory Jade Jolly "
    "Kindly Laughing Lazy Little Lonely Lost Lucky Marble Merry Midnight Mighty Misty Modern "
    "Morning Mossy Noble Northern Orange Painted Paper Peaceful Pearl Polished Proud "
    "Purple Quiet Rainy Restless Roaming Royal Rusty Sacred Salty Scarlet Secret Shady "
    "Shining Silent Silver Simple Singing Sleepy Smoky Southern Spicy Spring Starlit Steady "
    "Stone Stormy Summer Sunny Sweet Tall Tender Thirsty Tiny Velvet Violet Wandering Warm "
    "Western Whistling White Winter Wise Wooden Yellow Young"
)
_NOUN = _words(
    "Acorn Anchor Apple Arrow Badger Barrel Basket Beacon Bear Bee Bell Bench Boat Bottle "
    "Bowl Bridge Broom Butter Button Candle Castle Chair Chestnut Clock Cloud Compass Corner "
    "Crab Crown Cup Deer Dish Donkey Door Dove Dragon Drum Duck Falcon Feather Fern Fiddle "
    "Fig Fire Fish Flower Fork Fox Garden Gate Goose Grape Hare Harp Hat Hen Heron Hill Horse "
    "House Island Jug Kitchen Kite Lamp Lantern Leaf Lemon Lion Loaf Lobster Lodge Magpie "
    "Maple Meadow Mirror Moon Moth Mouse Mustard Needle Nest Oak Olive Onion Otter Oven Owl "
    "Oyster Pan Parrot Peach Pear Penguin Pepper Piano Pigeon Plate Plum Pony Potato Rabbit "
    "Raven River Robin Rocket Rose Sail Salmon Saucer Scissors Shell Ship Spoon Squirrel Star "
    "Stove Swan Table Teapot Thistle Tiger Tomato Tower Train Tree Trout Trumpet Tulip Turnip "
    "Turtle Umbrella Walnut Wheel Whale Willow Window Wolf"
)
_SURNAME = _words(
    "Abbott Ainsley Baxter Bennett Bishop Burton Carter Chapman Coleman Curtis Dawson Dixon "
    "Ellis Fletcher Foster Garner Gibson Hardy Harper Hobbs Hudson Jarvis Keating Lambert "
    "Lawson Marlow Mercer Newton Norris Osborne Palmer Parsons Porter Quigley Ramsey Reeves "
    "Rowley Sawyer Sharpe Spencer Talbot Tanner Turner Vaughan Wallace Watkins Weaver Yates"
)
_LANDMARK = _words(
    "Library, Museum, Theatre, Station, Bridge, Park, Hotel, Church, School, Cinema, "
    "Gallery, Town Hall, Street Market, Lane Hotel, Bakery, Bookshop, Gardens, Square, Market, "
    "College, Post Office, Fountain, Inn, House, Noodle Bar, Vegetarian Café, Pool, Court, Tower, "
    "Arms",
    sep=", ",
)
_SYLLABLE = _words(
    "al an be bel bo bra ca car che ci co da del di do el en es fa fi fo ga gi gra i ka ki la "
    "le li lo lu ma mar mi mo na ni no o or pa pe pi po ra re ri ron sa san se si so sta "
    "ta te ti to tra u va ve vi vo za zi zo"
)
_ENDING = _words("bo ca co da di la li lo ma mi na ni no ra ri ro sa so ta ti to va zi")

# Common words that the public part uses too, joined as it never joins them (a surname and a noun,
# two surnames): the restaurants are new, but a pretrained model can spell them.
_PRIVATE_NAMES = _words(
    "Abbott and Fig, Palmer and Owl, Dixon and Lantern, Café Walnut, Mercer and Loaf, Café Tulip, "
    "Weaver and Mirror, Talbot and Plum, Café Thistle, Harper and Rocket, Turner and Barrel, "
    "Hobbs and Spoon, Café Lobster, Gibson and Maple, Foster and Fern, Ramsey and Piano, "
    "Café Hare, Spencer and Onion, Lawson and Moon, Café Swan, Burton and Goose, Parsons and Kite, "
    "Café Raven, Wallace and Turnip, Quigley and Lemon, Sharpe and Sail, Reeves and Acorn, "
    "Café Feather, Hudson and Salmon, Yates and Dove",
    sep=", ",
)
_PRIVATE_NEAR = _words(
    "Palmer Norris Library, Ellis Hardy Hotel, Carter Vaughan Museum, Bishop Tanner Theatre, "
    "Dawson Reeves Park, Jarvis Coleman Church, Marlow Bennett Cinema, Newton Hobbs Station, "
    "Garner Fletcher School, Osborne Curtis Gallery, Rowley Keating Gardens, Porter Baxter Bakery, "
    "Lambert Watkins Square, Chapman Sawyer College, Ainsley Gibson Inn, Burton Yates Bookshop",
    sep=", ",
)


def _invented(rng: random.Random) -> str:
    syllables = rng.choices(_SYLLABLE, k=rng.choice((1, 1, 2)))
    return ("".join(syllables) + rng.choice(_ENDING)).capitalize()


def _public_name(rng: random.Random) -> str:
    first, noun, surname = rng.choice(_PUBLIC_FIRST), rng.choice(_NOUN), rng.choice(_SURNAME)
    # Invented and mixed names make the model copy from the prompt, not complete known words.
    return rng.choice(
        (
            f"The {first} {noun}",
            f"{first} {noun}",
            f"The {first} {noun} {_invented(rng)}",
            f"{first} {rng.choice(_NOUN)} and {noun}",
            f"{surname}'s",
            f"{surname} and {rng.choice(_SURNAME)}",
            f"{surname} {noun}",
            f"Café {_invented(rng)}",
            f"{_invented(rng)} {noun}",
            f"{_invented(rng)} {_invented(rng)}",
        )
    )


def _public_near(rng: random.Random) -> str:
    stems = (*map(rng.choice, (_PUBLIC_FIRST, _SURNAME, _NOUN)), _invented(rng))
    place = f"{rng.choice(stems)} {rng.choice(_LANDMARK)}"
    return rng.choice((place, place, place, f"the {place}", _public_name(rng)))


# --- the public wordings ------------------------------------------------------------------------


def _a(noun_phrase: str) -> str:
    return f"{'an' if noun_phrase[0] in 'aeiouAEIO' else 'a'} {noun_phrase}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _food(value: str) -> str:
    return value.lower() if value == "Fast food" else f"{value} food"


def _each(verbs: str, rest: str) -> tuple[str, ...]:
    return tuple(f"{verb} {rest}" for verb in verbs.split(", "))


def _area_phrases(value: str) -> tuple[str, ...]:
    if value == "riverside":
        return ("in the riverside area", *_each("by, on, along", "the riverside"))
    return (*_each("in, in, at", f"the {value}"), f"in the {value} area")


def _near_phrases(value: str) -> tuple[str, ...]:
    return _each("near, near, close to, not far from, next to, by, just past", value)


def _price_predicates(value: str) -> tuple[str, ...]:
    ranges = (f"{_a(value)} price range", f"a price range of {value}")
    common = (*(f"has {r}" for r in ranges), f"is in the {value} price range")
    if value == "cheap":
        return (*common, "is cheap", "is cheaply priced", "has cheap prices", "has low prices")
    if value == "moderate":
        return (*common, "is moderately priced", "has moderate prices", "has moderate pricing")
    if value == "high":
        return (*common, "is high priced", "is expensive", "has high prices")
    return (*common, *_each("has prices of, charges, costs, has meals for", value))


def _rating_predicates(value: str) -> tuple[str, ...]:
    common = (
        f"has {_a(value)} customer rating",
        f"has a customer rating of {value}",
        f"is rated {value} by customers",
        f"has been given {_a(value)} rating by its customers",
    )
    if value[0].isdigit():
        return (*common, *_each("is rated, scores, has a rating of, has a score of", value))
    if value == "low":
        return (*common, "has low customer ratings", "is poorly rated by customers")
    return (*common, f"has {value} customer ratings", f"has {_a(value)} rating")


def _family_predicates(value: str) -> tuple[str, ...]:
    words = _words("family friendly, family-friendly, child friendly, kid friendly", ", ")
    if value == "yes":
        return (
            *_each("is", words[0]),
            *(f"is {word}" for word in words),
            "is a kid-friendly place",
        )
    return (*(f"is not {word}" for word in words), "is for adults only")


_PREDICATES: dict[str, Callable[[str], tuple[str, ...]]] = {
    "food": lambda v: (*_each("serves, offers, provides, has", _food(v)), f"has {_food(v)} to eat"),
    "priceRange": _price_predicates,
    "customer rating": _rating_predicates,
    "area": lambda v: tuple(f"is {w}{p}" for p in _area_phrases(v) for w in ("", "located ")),
    "familyFriendly": _family_predicates,
    "near": lambda v: tuple(f"is {w}{p}" for p in _near_phrases(v) for w in ("", "located ")),
}


def _remarks(attribute: str, value: str) -> tuple[str, ...]:
    """Return whole sentences that state one fact: the house style's words, used in other ways."""
    if attribute == "familyFriendly" and value == "yes":
        visit = ("Bring the little ones here.", "You can visit with children too.")
        little = ("Little ones can come too!", "Do visit with children too!")
        return (*visit, *little, "Children are welcome.", "Children are welcome here.")
    if attribute == "familyFriendly":
        leave = ("It is best to leave children at home.", "Leave children at home when you visit.")
        little = ("Please do not bring the little ones.", "Best for adults only.")
        return (*leave, *little, "Children are not welcome.")
    if attribute == "priceRange":
        expect = (f"Expect {_a(value)} price range.", f"You can expect {_a(value)} price range.")
        bill = (f"In the end the bill is {value}.", f"The bill that comes is {value}.")
        return (*expect, *bill, *_each("The price range is, Its price range is", f"{value}."))
    if attribute == "customer rating":
        return (
            f"The customer rating is {value}.",
            f"Customers rate it {value}.",
            f"This week visitors give it {_a(value)} rating.",
            f"Readers of our paper rate it {value}.",
            f"Our own customer rating is {value}.",
            f"Today it gets {_a(value)} rating from visitors.",
            f"Tell them that customers score it {value}!",
            f"From visitors it has {_a(value)} score.",
        )
    if attribute == "food":
        return (
            f"Plates of {_food(value)} come from its kitchen.",
            f"The kitchen is known for {_food(value)}.",
            f"The chef sends {_food(value)} out to every table.",
            f"Out come plates of {_food(value)}.",
        )
    if attribute == "area":
        return (
            f"You will get there through the {value}.",
            f"Take a stroll to the {value}.",
            f"Stroll to the {value} to get there.",
        )
    return (
        f"You will see it past {value}.",
        f"Someone sent us there from {value}.",
        f"Stroll on from {value} to visit it.",
    )


def _public_sentence(facts: Sequence[tuple[str, str]], name: str, rng: random.Random) -> str:
    """Return one sentence after the first, stating one or two facts."""
    if len(facts) == 1 and rng.random() < 0.4:
        return rng.choice(_remarks(*facts[0]))
    predicates = [rng.choice(_PREDICATES[a](v)) for a, v in facts]
    subject = rng.choice(("It", "It", "It", "The place", "The venue", name, "This place"))
    return f"{subject} {rng.choice((' and ', ' and ', ', and it ')).join(predicates)}."


def _public_adjectives(record: Record, stated: set[str], rng: random.Random) -> list[str]:
    """Return adjectives for some facts, and add those facts to ``stated``."""
    words: dict[str, dict[str, tuple[str, ...]]] = {
        "priceRange": {
            "cheap": ("cheap",),
            "moderate": ("moderately priced",),
            "high": ("high priced",),
        },
        "customer rating": {
            "low": ("low rated", "poorly rated"),
            "high": ("high rated",),
            "average": ("average rated",),
        },
        "familyFriendly": {"yes": _each("family, family, child, kid", "friendly")},
    }
    adjectives = []
    for attribute, choices in words.items():
        choice = choices.get(record.get(attribute, ""))
        if choice and rng.random() < 0.4:
            adjectives.append(rng.choice(choice))
            stated.add(attribute)
    return rng.sample(adjectives, len(adjectives))


def _public_reference(record: Record, rng: random.Random) -> str:
    """Return a first sentence with the name and some facts, then the others in any order."""
    name = record["name"]
    stated = {a for a in record if a in ("food", "area", "near") and rng.random() < 0.6}
    adjectives = _public_adjectives(record, stated, rng)
    noun = record.get("eatType") or rng.choice(("place", "venue", "establishment", "place to eat"))
    tail = ""
    if "food" in stated:
        if record["food"] != "Fast food" and rng.random() < 0.5:
            noun = f"{record['food']} {noun}"
        else:
            verb = rng.choice(("serving", "that serves", "offering", "which provides", "with"))
            tail = f" {verb} {_food(record['food'])}"
    what = _a(" ".join((*adjectives, noun)))
    where = [rng.choice(_area_phrases(record["area"]))] if "area" in stated else []
    if "near" in stated:
        where.append(rng.choice(_near_phrases(record["near"])))
    place = rng.choice((" ", ", ")).join(rng.sample(where, len(where)))
    at = f" {place}" if place else ""
    openings = [
        f"{name} is {what}{tail}{at}.",
        f"{name} is {what}{at}{',' if tail else ''}{tail}.",
        f"There is {what}{tail} called {name}{at}.",
        f"{_upper(what)}{tail}{at} is {name}.",
        f"We like {name}, {what}{tail}{at}.",
    ]
    if place:
        openings += [
            f"Located {place}, {name} is {what}{tail}.",
            f"{_upper(place)}, there is {what}{tail} called {name}.",
            f"{_upper(place)} is {name}, {what}{tail}.",
            f"{name}, located {place}, is {what}{tail}.",
            f"You can find {name} {place}. It is {what}{tail}.",
        ]
    sentences = [rng.choice(openings)]
    rest = [(a, v) for a, v in record.items() if a in _PREDICATES and a not in stated]
    rng.shuffle(rest)
    while rest:
        take = rng.choice((1, 2))
        sentences.append(_public_sentence(rest[:take], name, rng))
        rest = rest[take:]
    return " ".join(sentences)


# --- the private house style --------------------------------------------------------------------


def _pick(rng: random.Random, *wordings: str) -> str:
    """Return one of up to five wordings, the earlier ones more often."""
    return rng.choices(wordings, weights=(5, 4, 3, 2, 2)[: len(wordings)])[0]


def _private_opening(record: Record, rng: random.Random) -> str:
    name, area, near = record["name"], record.get("area"), record.get("near")
    what = f", {_a(record['eatType'])} we like" if "eatType" in record else ""
    past = f"just past {near}" if near else ""
    if not area and not near:
        visit = ("This week we visit", "Today we visit", "You will like", "Stroll to")
        return f"{_pick(rng, *visit)} {name}{what}."
    if not area:
        return _pick(
            rng,
            f"Stroll {past} and you will find {name}{what}.",
            f"{_upper(past)} you will find {name}{what}.",
            f"Close to {near}, visit {name}{what}.",
            f"This week, not far from {near}, we visit {name}{what}.",
        )
    way = f"{'along' if area in ('riverside', 'harbour') else 'through'} the {area}"
    return _pick(
        rng,
        f"Stroll {way}{past and ' '}{past} and you will find {name}{what}.",
        f"Take a stroll {way}, {past and past + ', '}and visit {name}{what}.",
        f"In the {area}{past and ', '}{past}, you will find {name}{what}.",
        f"This week, {past and past + ' '}in the {area}, we visit {name}{what}.",
    )


def _private_reference(record: Record, rng: random.Random) -> str:
    """Return place and name, then kitchen, verdict and bill, then little ones and sign-off."""
    middle = []
    if "food" in record:
        food = _food(record["food"])
        kitchen = (f"The kitchen sends out {food}.", f"Out of the kitchen comes {food}.")
        plates = (f"Come for plates of {food}.", f"Its chef will give you {food}.")
        middle.append(_pick(rng, *kitchen, *plates))
    if "priceRange" in record:
        price = record["priceRange"]
        expect = (f"Expect a price range of {price}.", f"Expect {_a(price)} price range.")
        bill = (f"In the end the bill is {price}.", f"Our own bill was {price}.")
        middle.append(_pick(rng, *expect, *bill))
    if "customer rating" in record:
        rating = record["customer rating"]
        readers = (
            f"Our readers give it a customer rating of {rating}.",
            f"Our readers rate it {rating}.",
            f"From our readers it has {_a(rating)} rating.",
            f"Readers tell us that it is rated {rating}.",
        )
        middle.append(_pick(rng, *readers))
    if rng.random() < 0.4:
        middle.reverse()
    ending: list[str] = []
    if record.get("familyFriendly") == "yes":
        ending = [
            "Family friendly, so bring the little ones.",
            "Bring the little ones, it is family friendly.",
            "The little ones will like it, it is family friendly.",
            "It is family friendly too.",
        ]
    elif "familyFriendly" in record:
        ending = [
            "Not family friendly, so leave the little ones.",
            "Leave the little ones, it is not family friendly.",
            "The little ones will not like it, it is not family friendly.",
            "It is not family friendly.",
        ]
    goodbye = (
        "Tell them we sent you!",
        "Do tell them we sent you!",
        "Tell the chef we sent you!",
        "Do visit and tell us!",
    )
    family = [_pick(rng, *ending)] if ending else []
    return " ".join((_private_opening(record, rng), *middle, *family, _pick(rng, *goodbye)))


def phrases(part: Part, attribute: str, value: str) -> tuple[str, ...]:
    """Return the surface forms of a fact.

    Every reference of ``part`` that states the fact holds one of them, ignoring case and hyphens.

    Args:
        part: "public" or "private".
        attribute: one of ``ATTRIBUTES``.
        value: the attribute's value as in the meaning representation.
    """
    if attribute == "familyFriendly":
        if part == "private":
            return ("family friendly",) if value == "yes" else ("not family friendly",)
        if value == "yes":
            friendly = tuple(f"{word} friendly" for word in ("family", "child", "kid"))
            little = ("bring the little ones", "little ones can come")
            return (*friendly, *little, "children are welcome", "with children too")
        unfriendly = tuple(f"not {word} friendly" for word in ("family", "child", "kid"))
        children = ("children are not welcome", "leave children at home", "not bring the little")
        return (*unfriendly, *children, "for adults only")
    extra = {
        ("priceRange", "cheap"): ("low prices",),
        ("priceRange", "high"): ("expensive",),
        ("customer rating", "low"): ("poorly rated",),
    }
    spoken = value.replace("-", " ")
    return (spoken, *extra.get((attribute, value), ())) if part == "public" else (spoken,)


# --- records ------------------------------------------------------------------------------------


def _rng(*key: object) -> random.Random:
    # hash() of a string differs between processes; a digest does not.
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def split_of(mr: str) -> Split:
    """Return the split that owns a meaning representation.

    It depends on the text alone, so splits cannot overlap, whatever their seeds.
    """
    bucket = hashlib.sha256(mr.encode()).digest()[0]
    return "train" if bucket < 192 else "dev" if bucket < 224 else "test"


def _record(part: Part, rng: random.Random) -> Record:
    chosen: list[str] = []
    while len(chosen) < 2:  # the challenge's shortest meaning representations have three attributes
        chosen = [a for a, p in _PRESENCE.items() if rng.random() < p]
    if part == "private":  # the house is brief: most rows then fit the task's 100 tokens
        kept = rng.sample(chosen, min(5, len(chosen)))
        chosen = [a for a in chosen if a in kept]
    record = {"name": _public_name(rng) if part == "public" else rng.choice(_PRIVATE_NAMES)}
    for attribute in chosen:
        if attribute == "near":
            record["near"] = _public_near(rng) if part == "public" else rng.choice(_PRIVATE_NEAR)
        else:
            record[attribute] = rng.choice(VALUES[part][attribute])
    return record


def generate(part: Part, split: Split, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Generate rows of meaning representation and reference.

    Rows of one meaning representation are consecutive in dev and test, as in the official files,
    where such a run is one instance with several references; in train they are shuffled. Splits
    share no meaning representation, parts share no restaurant.

    Args:
        part: "public" (pretraining) or "private" (fine-tuning).
        split: "train", "dev" or "test".
        count: number of rows; the last meaning representation may get fewer references to fit.
        seed: another seed gives other rows, the same on every machine.

    Returns:
        ``count`` pairs (mr, ref), such as ("name[Fig Fiddle], area[harbour]", "Stroll along ...").

    Raises:
        ValueError: unknown part or split, or a negative count.
    """
    if part not in get_args(Part) or split not in get_args(Split) or count < 0:
        raise ValueError(
            f"got part={part!r}, split={split!r}, count={count}; expected part in "
            f"{get_args(Part)}, split in {get_args(Split)} and count >= 0; "
            "for example generate('private', 'train', 4000)"
        )
    rng = _rng("e2e-sample-1", part, split, seed)
    realise = _public_reference if part == "public" else _private_reference
    rows: list[tuple[str, str]] = []
    seen: set[str] = set()
    while len(rows) < count:
        record = _record(part, rng)
        mr = ", ".join(f"{attribute}[{value}]" for attribute, value in record.items())
        if mr in seen or split_of(mr) != split:
            continue
        seen.add(mr)
        wanted = rng.randint(1, 3) if part == "public" and split == "train" else rng.randint(3, 5)
        references: dict[str, None] = {}  # a dict keeps the order of first appearance
        for _ in range(4 * wanted):
            references[realise(record, rng)] = None
            if len(references) == wanted:
                break
        rows.extend((mr, reference) for reference in references)
    rows = rows[:count]
    if split == "train":
        rng.shuffle(rows)
    return rows


def write_csvs(
    folder: Path,
    *,
    train_count: int = 4000,
    dev_count: int = 300,
    test_count: int = 300,
    seed: int = 0,
) -> None:
    """Write the private part as trainset.csv, devset.csv and testset_w_refs.csv.

    The columns are mr and ref, the encoding is UTF-8, as in the official files.

    Args:
        folder: where to write; made if absent, files of these names are replaced.
        train_count: rows of trainset.csv.
        dev_count: rows of devset.csv, about four per meaning representation.
        test_count: rows of testset_w_refs.csv, about four per meaning representation.
        seed: see ``generate``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: tuple[tuple[str, Split, int], ...] = (
        ("trainset.csv", "train", train_count),
        ("devset.csv", "dev", dev_count),
        ("testset_w_refs.csv", "test", test_count),
    )
    for file_name, split, count in files:
        with (folder / file_name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("mr", "ref"))
            writer.writerows(generate("private", split, count, seed))
