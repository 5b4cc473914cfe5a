// PyTorch's headers name this one as well; of the driver they use nothing by themselves. See cuda_runtime_api.h.
#pragma once

#include <cuda_runtime_api.h>
