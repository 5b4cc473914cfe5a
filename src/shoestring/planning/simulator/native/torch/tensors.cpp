#include "torch/tensors.h"

#include <ATen/ATen.h>

namespace simulator {

bool is_device_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() && tensor.layout() == at::kStrided;
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (!is_device_tensor(tensor)) return tensor;
  const at::TensorOptions options = at::TensorOptions(at::kCPU).dtype(tensor.dtype());
  // Autograd's stand-in for zeros has no memory.
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), options);
  void* const address = const_cast<void*>(tensor.const_data_ptr());
  at::Tensor alias = at::from_blob(address, tensor.sizes(), tensor.strides(), [](void*) {}, options);
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

c10::IValue replace_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> replaced;
    for (const at::Tensor& tensor : value.toTensorVector()) replaced.push_back(replace(tensor));
    return replaced;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> replaced;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      replaced.push_back(tensor ? std::optional<at::Tensor>(replace(*tensor)) : std::nullopt);
    }
    return replaced;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return at::Device(at::kCPU);
  return value;
}

}  // namespace simulator
