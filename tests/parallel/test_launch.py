"""How a process finds out that it is one of several, and what it refuses to be."""

import pytest

from dpft.config.errors import ConfigError
from dpft.parallel.launch import check_launcher, launched

TORCHRUN = {
    "WORLD_SIZE": "2",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
# Of a step of one task in a job of two: what `srun -n 1` says below `sbatch --ntasks=2`.
ONE_TASK = {"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.fixture
def environment(monkeypatch):
    def be(variables):
        for name in (*TORCHRUN, *ONE_TASK, "OMPI_COMM_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return be


@pytest.mark.parametrize(
    ("variables", "processes"),
    [
        ({}, 1),
        (ONE_TASK, 1),
        # torchrun below srun, one task a node
        (TORCHRUN | {"SLURM_STEP_NUM_TASKS": "2"}, 2),
    ],
)
def test_groups_and_single_processes_go_on(environment, variables, processes):
    environment(variables)
    check_launcher()
    check_launcher(processes)
    assert launched() == processes


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_strangers_are_refused(environment, name):
    environment({name: "2"})
    with pytest.raises(ConfigError, match=f"{name} is 2: .* torchrun .* ranks=N"):
        check_launcher()


def test_a_world_without_a_rank_is_no_group(environment):
    """Scripts for other programs export the size alone: each process would take itself for all."""
    environment({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"})
    with pytest.raises(ConfigError, match="but RANK, LOCAL_RANK, MASTER_PORT is not set"):
        check_launcher()


@pytest.mark.parametrize(
    ("variables", "said"), [({}, "this is one process"), (TORCHRUN, "this is one of 2 processes")]
)
def test_another_number_than_asked_is_refused(environment, variables, said):
    environment(variables)
    with pytest.raises(ConfigError, match=f"ranks is 3, but {said}"):
        check_launcher(3)
