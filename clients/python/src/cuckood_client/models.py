"""What requests and answers are made of, generated."""

from .generated.models import *
