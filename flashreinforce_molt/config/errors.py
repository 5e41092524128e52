"""The one exception for a person's mistake in a setting."""


class SettingError(ValueError):
    """A setting is unknown, has a wrong type or value, or contradicts another; the message names the fix."""
