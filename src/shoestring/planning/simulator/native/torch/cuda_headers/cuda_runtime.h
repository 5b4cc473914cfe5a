// PyTorch's headers name this one as well; see cuda_runtime_api.h.
#pragma once

#include <cuda_runtime_api.h>
