"""GTSRB (Stallkamp et al. 2012): German traffic signs of 15 to 250 pixels a side, in 43 classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpft.config.errors import DataError
from dpft.tasks.images import Images, Rows, hub_images, image_file, names
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.samples.images import write_gtsrb
from dpft.tasks.sources import Dataset, Form, Hub
from dpft.tasks.table_files import Separated

_EXPECTED = "expected columns Filename;...;ClassId, separated by semicolons"
_TEST_IMAGES = Path("GTSRB", "Final_Test", "Images")

# The archives number the classes; the names are ours.
CLASSES = names(
    """speed limit 20, speed limit 30, speed limit 50, speed limit 60, speed limit 70,
    speed limit 80, end of speed limit 80, speed limit 100, speed limit 120, no overtaking,
    no overtaking by lorries, priority at next crossing, priority road, give way, stop,
    no vehicles, no lorries, no entry, danger, bend to the left, bend to the right, double bend,
    uneven road, slippery road, road narrows, road works, traffic lights, pedestrians, children,
    bicycles, snow or ice, wild animals, end of all limits, turn right, turn left, straight on,
    straight on or right, straight on or left, keep right, keep left, roundabout,
    end of no overtaking, end of no overtaking by lorries""",
    ", ",
)


def read_csv(path: Path) -> Rows:
    """The images that an official annotation file lists, whole: the sign with its margin.

    They lie beside it, or, for ``GT-final_test.csv``, where the archive of test images puts them.

    Raises:
        DataError: naming file and line, if the file is missing or malformed, or an image is not
            there.
    """
    folder = path.parent / _TEST_IMAGES
    if not folder.is_dir():
        folder = path.parent
    # The folder of a training file is its class.
    own = int(path.parent.name) if path.parent.name.isdecimal() else None
    rows: Rows = []
    for row in Separated(path, ";").rows():
        where = row.place
        if not {"Filename", "ClassId"} <= set(row.values):
            raise DataError(f"{where}: got columns {';'.join(row.values)}; {_EXPECTED}")
        name, number = row.values["Filename"], row.values["ClassId"]
        if not number.isdecimal() or int(number) >= len(CLASSES):
            raise DataError(
                f"{where}: got class {number!r}; expected a number below {len(CLASSES)}"
            )
        if own is not None and int(number) != own:
            raise DataError(f"{where}: got class {number}; expected {own}, as the folder says")
        if not name or Path(name).name != name:
            raise DataError(f"{where}: got file {name!r}; expected the name of an image")
        image = image_file(folder / name, where)
        rows.append(LabelledImage(image, int(number), f"{folder.name}/{name}"))
    return rows


@dataclass(frozen=True)
class GTSRB(Images):
    """Traffic signs; see ``conf/task/gtsrb.yaml``."""

    name = "gtsrb"
    classes = CLASSES
    dataset = Dataset(
        forms=(
            Form(
                {
                    "train": "GTSRB/Final_Training/Images/*/GT-*.csv",
                    "test": "GT-final_test.csv",
                },
                read_csv,
            ),
            # The smaller set of the competition's first stage, which torchvision downloads.
            Form({"train": "GTSRB/Training/*/GT-*.csv", "test": "GT-final_test.csv"}, read_csv),
        ),
        hub=Hub("tanganke/gtsrb", {"train": "train", "test": "test"}, hub_images("image", "label")),
        write_sample=write_gtsrb,
    )

    def details(self, split: str) -> list[str]:
        """Classes without an image, as of an archive that was unpacked in part."""
        there = {row.label for row in self.rows(split)}
        missing = [name for label, name in enumerate(CLASSES) if label not in there]
        if not missing:
            return []
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return [f"no image of {', '.join(missing[:3])}{more}; the archives have all classes"]
