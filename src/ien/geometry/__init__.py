"""Which operations of a forward pass quarter turns and flips pass through: what the doctor rests on."""
