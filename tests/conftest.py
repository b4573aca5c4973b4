"""Settings of the suite."""

import os

from hypothesis import HealthCheck, settings

from holdfast.app.declarations import DECLARATIONS

settings.register_profile("suite", deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# Whoever runs the suite may have settings of his own: no test sees them.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
for declaration in DECLARATIONS.values():
    for variable in declaration.variables:
        os.environ.pop(variable, None)
