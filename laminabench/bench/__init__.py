"""laminabench and its engine measured on this machine, beside the targets they are held to."""

import lamina  # noqa: F401 - it says how long torch's threads spin, of a torch that is imported after it
