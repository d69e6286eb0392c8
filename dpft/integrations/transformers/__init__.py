"""Hugging Face's `Trainer` with differential privacy.

>>> trainer = PrivateTrainer(  # doctest: +SKIP
...     model=model, args=args, train_dataset=data, privacy=PrivacyArguments(epsilon=3)
... )
>>> trainer.train()  # doctest: +SKIP
"""

from dpft.integrations.transformers.arguments import PrivacyArguments
from dpft.integrations.transformers.spending import Spending
from dpft.integrations.transformers.trainer import PrivacyMixin, PrivateTrainer

__all__ = ["PrivacyArguments", "PrivacyMixin", "PrivateTrainer", "Spending"]
