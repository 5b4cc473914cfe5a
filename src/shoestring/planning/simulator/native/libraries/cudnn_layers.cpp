// cuDNN's older interface of other layers: batch normalization, CTC loss, pooling and spatial transformers.
//
// The sizes of workspaces are estimates: the library does not document them.
//
// Declarations after cudnn_ops.h and cudnn_adv.h of cuDNN 9.10.
#include <cstddef>

#include "interface.h"
#include "libraries/cudnn_descriptors.h"
#include "libraries/library.h"

using simulator::TensorDescriptor;

namespace {

constexpr int SUCCESS = 0;

const TensorDescriptor& tensor(const void* description) { return *static_cast<const TensorDescriptor*>(description); }

// Room for the logarithms of the probabilities in float.
int answer_ctc_workspace(const void* probabilities, size_t* bytes) {
  *bytes = tensor(probabilities).elements() * sizeof(float);
  return SUCCESS;
}

}  // namespace

// ---- batch normalization. Without an activation it needs neither a workspace nor a reserve.

EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*,
                                                                    size_t* bytes) {
  *bytes = 0;
  return SUCCESS;
}

EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*, void*, void*, void*,
                                                             size_t* bytes) {
  *bytes = 0;
  return SUCCESS;
}

// With an activation, the reserve says for each element whether it passed: one bit.
EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int operations, void*, const void* input,
                                                                size_t* bytes) {
  *bytes = operations == 0 ? 0 : (tensor(input).elements() + 7) / 8;
  return SUCCESS;
}

EXPORT int cudnnBatchNormalizationForwardTrainingEx() { return SUCCESS; }
EXPORT int cudnnBatchNormalizationForwardInference() { return SUCCESS; }
EXPORT int cudnnBatchNormalizationBackwardEx() { return SUCCESS; }
EXPORT int cudnnDeriveBNTensorDescriptor(void*, void*, int) { return SUCCESS; }

// ---- connectionist temporal classification

EXPORT int cudnnCreateCTCLossDescriptor(void** description) { return simulator::give(description); }
EXPORT int cudnnDestroyCTCLossDescriptor(void* description) { return simulator::take_back(description); }
EXPORT int cudnnSetCTCLossDescriptorEx(void*, int, int, int) { return SUCCESS; }
EXPORT int cudnnSetCTCLossDescriptor_v8(void*, int, int, int, int) { return SUCCESS; }
EXPORT int cudnnSetCTCLossDescriptor_v9(void*, int, int, int, int) { return SUCCESS; }

EXPORT int cudnnGetCTCLossWorkspaceSize(void*, const void* probabilities, void*, const int*, const int*, const int*, int, void*,
                                        size_t* bytes) {
  return answer_ctc_workspace(probabilities, bytes);
}
EXPORT int cudnnGetCTCLossWorkspaceSize_v8(void*, int, void*, const void* probabilities, void*, size_t* bytes) {
  return answer_ctc_workspace(probabilities, bytes);
}
EXPORT int cudnnCTCLoss() { return SUCCESS; }
EXPORT int cudnnCTCLoss_v8() { return SUCCESS; }

// ---- pooling

EXPORT int cudnnCreatePoolingDescriptor(void** description) { return simulator::give(description); }
EXPORT int cudnnDestroyPoolingDescriptor(void* description) { return simulator::take_back(description); }
EXPORT int cudnnSetPooling2dDescriptor(void*, int, int, int, int, int, int, int, int) { return SUCCESS; }
EXPORT int cudnnPoolingForward() { return SUCCESS; }

// ---- spatial transformers

EXPORT int cudnnCreateSpatialTransformerDescriptor(void** description) { return simulator::give(description); }
EXPORT int cudnnDestroySpatialTransformerDescriptor(void* description) { return simulator::take_back(description); }
EXPORT int cudnnSetSpatialTransformerNdDescriptor(void*, int, int, int, const int*) { return SUCCESS; }
EXPORT int cudnnSpatialTfGridGeneratorForward() { return SUCCESS; }
EXPORT int cudnnSpatialTfGridGeneratorBackward() { return SUCCESS; }
EXPORT int cudnnSpatialTfSamplerForward() { return SUCCESS; }
EXPORT int cudnnSpatialTfSamplerBackward() { return SUCCESS; }
