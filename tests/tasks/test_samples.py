"""Generated samples: files of the published forms, the same on every machine, no leaks."""

import itertools
import json
import os
import subprocess
import sys
from typing import get_args

import pytest

from dpft.config.flags import sentences
from dpft.tasks import TASKS, load_task
from dpft.tasks.e2e import Split, generate, split_of
from dpft.tasks.task import SPLITS, fingerprint
from scripts import public_e2e


def task_of(name, **settings):
    more = {"classes": "from_data"} if name == "classification" else {}
    return load_task({"name": name, **settings, **more})


def sample_fingerprints():
    """Of texts: images are drawn by arrays, in which no set and no dictionary has a part."""
    tasks = [task_of(name, source="sample") for name in TASKS]
    texts = [task for task in tasks if task.needs.kind != "image"]
    return {task.name: fingerprint(task.records("train")) for task in texts}


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_is_what_is_read_of_the_files_that_it_is_written_to(tmp_path, name):
    sample, other = (task_of(name, source="sample", sample_seed=seed) for seed in (0, 1))
    assert "generated sample data" in sentences(sample.flags())
    sample.dataset.write_sample(tmp_path, 0)
    files = task_of(name, data_dir=str(tmp_path))
    assert files.location == ("files", tmp_path)
    assert "generated sample data" not in sentences(files.flags())
    for split in set(SPLITS) & set(sample.dataset.all_forms()[0].files):
        found = fingerprint(files.records(split))
        assert found == fingerprint(sample.records(split)) != fingerprint(other.records(split))


@pytest.mark.parametrize("name", TASKS)
def test_limits_take_the_first_training_records_and_the_first_questions_whole(name):
    few = task_of(name, source="sample", limit_eval=3, limit_train=5)
    whole = task_of(name, source="sample")
    split = "test" if "test" in whole.dataset.all_forms()[0].files else "dev"
    found, every = ([i.references for i in task.instances(split)] for task in (few, whole))
    assert found == every[:3]
    assert len(every) > 3
    kept = fingerprint(few.records("train"))
    assert kept == fingerprint(whole.records("train")[:5]) != fingerprint(whole.records("train"))
    assert fingerprint(few.records(split)) == fingerprint(whole.records(split))


def test_samples_do_not_depend_on_the_hash_seed_of_the_process():
    code = "import json; from tests.tasks import test_samples as samples; "
    code += "print(json.dumps(samples.sample_fingerprints()))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert json.loads(found.stdout.splitlines()[-1]) == sample_fingerprints()


PARTS = {"public": public_e2e.generate, "private": generate}


def facts(mr):
    return dict(field.rstrip("]").split("[", 1) for field in mr.split("], "))


@pytest.mark.parametrize("part", PARTS)
def test_splits_of_e2e_share_no_meaning_representation_even_under_different_seeds(part):
    mrs = {
        split: {mr for seed in (0, 1) for mr, _ in PARTS[part](split, 400, seed)}
        for split in get_args(Split)
    }
    for one, other in itertools.combinations(mrs, 2):
        assert not mrs[one] & mrs[other]
    assert all(split_of(mr) == split for split, found in mrs.items() for mr in found)


def test_parts_of_e2e_share_no_restaurant_no_landmark_and_no_sentence():
    public, private = (write("train", 2000) for write in PARTS.values())
    for attribute in ("name", "near"):
        ours, theirs = (
            {facts(mr).get(attribute) for mr, _ in rows} - {None} for rows in (public, private)
        )
        assert not ours & theirs
    assert not {ref for _, ref in public} & {ref for _, ref in private}
