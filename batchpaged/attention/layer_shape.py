"""What one attention layer stores, without torch: planning asks for it as well."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerShape:
    """One layer's keys and values for one token; layers of one model may differ, and keys from values."""

    num_kv_heads: int
    head_dim: int  # of keys
    value_dim: int  # of values

    @property
    def num_values(self) -> int:
        """Numbers stored for one token, keys and values together."""
        return self.num_kv_heads * (self.head_dim + self.value_dim)

    def num_bytes(self, bytes_per_number: int, is_quantised: bool) -> int:
        """Of one token; quantised: a byte for each number, a float32 scale for each head's key and value."""
        return self.num_values + 8 * self.num_kv_heads if is_quantised else self.num_values * bytes_per_number
