"""Nothing secret is shown or written: one place that knows which texts of a review are secret."""

from __future__ import annotations

import os
from typing import Any

from flashreinforce_molt.review.document import Review
from flashreinforce_molt.review.molt_extras import is_secret
from flashreinforce_molt.review.molt_flags import flattened
from flashreinforce_molt.telemetry.redaction import redact


def without_secrets(review: Review, value: Any) -> Any:
    """A copy of `value` without secrets of the environment, of known shapes, and of free-form settings that hold some."""
    config = review.experiment.config
    free = flattened({"molt": config.molt.flags, "environment": config.environment.options})
    held = {f"{name}_SECRET": str(text) for name, text in free.items() if is_secret(name)}
    return redact(value, environ={**os.environ, **held})
