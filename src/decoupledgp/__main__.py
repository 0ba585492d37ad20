"""`python -m decoupledgp` is the command `decoupledgp`."""

from decoupledgp.cli import app

app()
