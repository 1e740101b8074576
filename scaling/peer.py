"""Public API for user-defined peers (other AD libraries): export `Prepared`. See docs/adding_a_peer.md."""

from scaling.peers.interface import Prepared

__all__ = ["Prepared"]
