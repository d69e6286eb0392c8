"""What ``dpft train --help`` prints, read from the files of conf/ alone: it answers at once."""

from dpft.config import folder
from dpft.report.terminal import echo

_PAGE = """\
dpft train: fine-tune a pretrained model with differential privacy, decode, score, and record it.
Settings are typed as NAME=VALUE, flags before or after them; typed again, a command that was
stopped continues.

== Examples ==

  dpft train task=e2e clip=ghost eps=3              # train, decode, score, record
  dpft train task=e2e clip=none                     # the same without privacy
  dpft train task=sst2 model=roberta-base task.mode=infill optim.lr=1e-4 eps=3
  dpft train task=text2text task.train_file=a.jsonl task.test_share=0.1 eps=3
  dpft train -m task=e2e eps=3,8 seed=1,2,3         # a run of each combination

== Flags ==

  --config FILE        settings of a file, a line each; what is typed wins; dpft cp has recipes
  -q, -v               tell less, tell more
  -m                   run every combination of values with commas
  --cfg job            print the configuration and run nothing; -p GROUP for a part of it
  --info defaults      which files it is composed of; also: searchpath, plugins, all
  --config-dir FOLDER  more choices of your own: FOLDER/experiment/mine.yaml is +experiment=mine
  --hydra-help         Hydra's own flags, all of them

== Config groups: type GROUP=CHOICE; what each is: dpft ls GROUP ==

{groups}
Those without a choice by default, such as experiment, are typed with +: +experiment=demo.
Settings in a group are typed with its name, as in optim.lr=1e-4; --cfg job shows all of them.

== Settings ==

{settings}

== More ==

  dpft ls                          every choice, in a sentence each
  dpft validate SETTINGS           check them without running anything
  dpft account task=e2e eps=3      what a budget means: noise, steps, epsilons
  README.md, docs/index.md         what a run leaves, what is guaranteed, what to mind
"""


def show() -> None:
    """Print the page."""
    groups = "\n".join(f"{group}: {', '.join(folder.choices(group))}" for group in folder.groups())
    plain = {key for key, value in folder.main().items() if not isinstance(value, dict)}
    text = (folder.conf_dir() / "config.yaml").read_text(encoding="utf-8")
    lines = [f"  {line}" for line in text.splitlines() if line.partition(":")[0] in plain]
    echo(_PAGE.format(groups=groups, settings="\n".join(lines)))
