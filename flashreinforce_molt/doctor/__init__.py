"""What this machine lacks for a recipe, told at once and before anything starts.

`examine` runs every check; nothing here starts or stops a Ray cluster, downloads, or loads a model.
"""

from flashreinforce_molt.doctor.checks import examine, examine_every_recipe
from flashreinforce_molt.doctor.machine import Gpu, Machine

__all__ = ["Gpu", "Machine", "examine", "examine_every_recipe"]
