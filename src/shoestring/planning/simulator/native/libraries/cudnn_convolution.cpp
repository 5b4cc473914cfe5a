// cuDNN's older interface of convolutions, which PyTorch uses if its interface of graphs is disabled: each has one algorithm, with
// the
// workspace that the configuration states.
// Declarations after cudnn_cnn.h and cudnn_ops.h of cuDNN 9.10.
#include <cstddef>

#include "configuration.h"
#include "interface.h"
#include "libraries/library.h"

namespace {

constexpr int SUCCESS = 0;
constexpr int DETERMINISTIC = 1;

// cudnnConvolutionFwdAlgoPerf_t; those of the backward passes are the same.
struct Performance {
  int algorithm;
  int status;
  float milliseconds;
  size_t workspace_bytes;
  int determinism;
  int math_type;
  int reserved[3];
};
static_assert(sizeof(Performance) == 48, "the layout of cudnn_cnn.h");

int answer(int requested, int* returned, Performance* results) {
  *returned = requested > 0 ? 1 : 0;
  if (requested <= 0) return SUCCESS;
  results[0] = Performance{};
  results[0].algorithm = 1;  // of the forward pass: implicit products with precomputed indices
  results[0].workspace_bytes = simulator::configuration().convolution_workspace;
  results[0].determinism = DETERMINISTIC;
  return SUCCESS;
}

int answer(size_t* bytes) {
  *bytes = simulator::configuration().convolution_workspace;
  return SUCCESS;
}

}  // namespace

EXPORT int cudnnCreateConvolutionDescriptor(void** description) { return simulator::give(description); }
EXPORT int cudnnDestroyConvolutionDescriptor(void* description) { return simulator::take_back(description); }
EXPORT int cudnnSetConvolutionNdDescriptor(void*, int, const int*, const int*, const int*, int, int) { return SUCCESS; }
EXPORT int cudnnSetConvolutionGroupCount(void*, int) { return SUCCESS; }
EXPORT int cudnnSetConvolutionMathType(void*, int) { return SUCCESS; }

EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(void*, void*, void*, void*, void*, int requested, int* returned,
                                                  Performance* results) {
  return answer(requested, returned, results);
}
EXPORT int cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void*, void*, void*, void*, int, int*, Performance*)
    SAME_AS(cudnnGetConvolutionForwardAlgorithm_v7);
EXPORT int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void*, void*, void*, void*, void*, int, int*, Performance*)
    SAME_AS(cudnnGetConvolutionForwardAlgorithm_v7);

EXPORT int cudnnFindConvolutionForwardAlgorithmEx(void*, void*, const void*, void*, const void*, void*, void*, void*, int requested,
                                                  int* returned, Performance* results, void*, size_t) {
  return answer(requested, returned, results);
}
EXPORT int cudnnFindConvolutionBackwardDataAlgorithmEx(void*, void*, const void*, void*, const void*, void*, void*, void*, int,
                                                       int*,
                                                       Performance*, void*, size_t) SAME_AS(cudnnFindConvolutionForwardAlgorithmEx);
EXPORT int cudnnFindConvolutionBackwardFilterAlgorithmEx(void*, void*, const void*, void*, const void*, void*, void*, void*, int,
                                                         int*,
                                                         Performance*, void*,
                                                         size_t) SAME_AS(cudnnFindConvolutionForwardAlgorithmEx);

EXPORT int cudnnGetConvolutionForwardWorkspaceSize(void*, void*, void*, void*, void*, int, size_t* bytes) { return answer(bytes); }
EXPORT int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, void*, void*, void*, void*, int, size_t*)
    SAME_AS(cudnnGetConvolutionForwardWorkspaceSize);
EXPORT int cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, void*, void*, void*, void*, int, size_t*)
    SAME_AS(cudnnGetConvolutionForwardWorkspaceSize);

// The parameters say what kernels would need; none of them matters here.
EXPORT int cudnnConvolutionForward() { return SUCCESS; }
EXPORT int cudnnConvolutionBackwardData() { return SUCCESS; }
EXPORT int cudnnConvolutionBackwardFilter() { return SUCCESS; }
EXPORT int cudnnConvolutionBiasActivationForward() { return SUCCESS; }
EXPORT int cudnnConvolutionBackwardBias() { return SUCCESS; }
