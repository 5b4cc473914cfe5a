import shoestring

# block
assert len(rows) == 1
