"""Food-101 (Bossard et al. 2014): photographs of dishes, up to 512 pixels a side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dpft.config.errors import DataError, suggestion
from dpft.tasks.images import Images, Rows, hub_images, image_file, names
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.samples.images import write_food101
from dpft.tasks.sources import Dataset, Form, Hub, text_lines

# In the order of the authors' classes.txt, which is the hub's; sorting would swap two.
CLASSES = names(
    """apple_pie baby_back_ribs baklava beef_carpaccio beef_tartare beet_salad beignets bibimbap
    bread_pudding breakfast_burrito bruschetta caesar_salad cannoli caprese_salad carrot_cake
    ceviche cheesecake cheese_plate chicken_curry chicken_quesadilla chicken_wings chocolate_cake
    chocolate_mousse churros clam_chowder club_sandwich crab_cakes creme_brulee croque_madame
    cup_cakes deviled_eggs donuts dumplings edamame eggs_benedict escargots falafel filet_mignon
    fish_and_chips foie_gras french_fries french_onion_soup french_toast fried_calamari fried_rice
    frozen_yogurt garlic_bread gnocchi greek_salad grilled_cheese_sandwich grilled_salmon guacamole
    gyoza hamburger hot_and_sour_soup hot_dog huevos_rancheros hummus ice_cream lasagna
    lobster_bisque lobster_roll_sandwich macaroni_and_cheese macarons miso_soup mussels nachos
    omelette onion_rings oysters pad_thai paella pancakes panna_cotta peking_duck pho pizza
    pork_chop poutine prime_rib pulled_pork_sandwich ramen ravioli red_velvet_cake risotto samosa
    sashimi scallops seaweed_salad shrimp_and_grits spaghetti_bolognese spaghetti_carbonara
    spring_rolls steak strawberry_shortcake sushi tacos takoyaki tiramisu tuna_tartare
    waffles"""
)
_INDEX = {name: index for index, name in enumerate(CLASSES)}


def read_list(path: Path) -> Rows:
    """The images that ``meta/train.txt`` or ``meta/test.txt`` lists, as ``class/number`` a line.

    Images are not decoded, and of all but the smallest only the path is kept.

    Raises:
        DataError: naming file and line, if the file is missing or malformed, or an image is not
            there.
    """
    images = path.parent.parent / "images"
    rows: Rows = []
    seen: set[str] = set()
    for number, line in enumerate(text_lines(path, "a list of images"), 1):
        entry = line.strip()
        if not entry:
            continue
        where = f"{path}, line {number}"
        if entry in seen:
            raise DataError(f"{where}: {entry} is there twice; expected each image once")
        seen.add(entry)
        name, _, image = entry.partition("/")
        if not image or Path(image).name != image:
            raise DataError(f"{where}: got {entry!r}; expected class/number, as apple_pie/1005649")
        if name not in _INDEX:
            raise DataError(
                f"{where}: got class {name!r}{suggestion(name, CLASSES)}; expected one of "
                f"Food-101's {len(CLASSES)}"
            )
        file = image_file(images / name / f"{image}.jpg", where)
        rows.append(LabelledImage(file, _INDEX[name], f"{entry}.jpg"))
    return rows


@dataclass(frozen=True)
class Food101(Images):
    """Dishes; see ``conf/task/food101.yaml``."""

    name = "food101"
    classes = CLASSES
    dataset = Dataset(
        forms=(
            Form({"train": "food-101/meta/train.txt", "test": "food-101/meta/test.txt"}, read_list),
            Form({"train": "meta/train.txt", "test": "meta/test.txt"}, read_list),
        ),
        hub=Hub(
            "ethz/food101",
            {"train": "train", "test": "validation"},
            hub_images("image", "label"),
        ),
        write_sample=partial(write_food101, CLASSES),
    )
