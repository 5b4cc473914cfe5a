import shutil

import shoestring
from my import Data, Lit

shutil.rmtree("runs/lit")
backbone, data_module = 1e-3, Data()
# block
