"""The real files have the sizes that their authors publish."""

import pytest

from dpft.config.errors import SplitError
from dpft.tasks import load_task

# Records and instances by split; None: the copy has no such file.
SIZES = {
    "e2e": {"train": (42061, None), "dev": (4672, 547), "test": (4693, 630)},
    # One reference of DART's test file is empty.
    "dart": {"train": None, "dev": (6980, 2768), "test": (12552 - 1, 5097)},
    "samsum": {"train": (14732, None), "dev": (818, 818), "test": (819, 819)},
    "personachat": {"dev": (7801, 7801)},
    "sst2": {"train": (67349, None), "dev": (872, 872)},
    "qnli": {"train": None, "dev": (5463, 5463)},
    "qnli_subset": {"train": (8999, None), "dev": (1000, 1000)},
    "qqp_subset": {"train": (8999, None), "dev": (1000, 1000)},
    "mnli_subset": {"train": (8999, None), "dev": (1000, 1000)},
}


@pytest.mark.parametrize("folder", SIZES)
def test_the_real_files_have_their_published_sizes(data_root, folder):
    task = load_task({"name": folder.removesuffix("_subset"), "data_dir": str(data_root / folder)})
    for split, sizes in SIZES[folder].items():
        if sizes is None:
            with pytest.raises(SplitError, match=f"holds no {split} split"):
                task.records(split)
            continue
        records, instances = sizes
        assert len(task.records(split)) == records
        if instances is not None:
            assert len(task.instances(split)) == instances
            assert all(reference for i in task.instances(split) for reference in i.references)
