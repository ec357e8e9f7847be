"""A process beside a broker that ships closed segments into the object store, in order, and loses none."""

from tieredstore.uploader.broker import BrokerEnvironment
from tieredstore.uploader.leadership import Leadership
from tieredstore.uploader.uploader import Uploader

__all__ = ["BrokerEnvironment", "Leadership", "Uploader"]
