"""Python loads this at start where the folder is on PYTHONPATH, so in every Ray worker of the tests."""

import molt_on_cpu

molt_on_cpu.install()
