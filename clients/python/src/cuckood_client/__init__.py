"""A client of cuckood: which users may still see which campaign, and which codes may still be used."""

from .client import AsyncClient, Client
from .generated.types import UNSET
from .problem import ProblemError
from .upload import Upload

__all__ = ["UNSET", "AsyncClient", "Client", "ProblemError", "Upload"]
