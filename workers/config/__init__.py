"""The settings of a worker group and its engine, as plain dataclasses without torch. May import models/directory."""
