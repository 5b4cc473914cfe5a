#include "torch/operator_traits.h"

#include <unordered_set>

namespace simulator {
namespace {

bool starts_with_one_of(const std::string& name, std::initializer_list<const char*> prefixes) {
  for (const char* prefix : prefixes) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

bool has_tag(const c10::OperatorHandle& handle, at::Tag tag) {
  for (const at::Tag other : handle.getTags()) {
    if (other == tag) return true;
  }
  return false;
}

}  // namespace

OperatorTraits::OperatorTraits(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  name = toString(handle.operator_name());
  reference = find_reference(name);
  random = has_tag(handle, at::Tag::nondeterministic_seeded);

  bool writes_any = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    writes.push_back(written);
    is_output.push_back(written && argument.is_out());
    writes_any = writes_any || written;
  }
  only_views = !schema.returns().empty();
  for (const c10::Argument& result : schema.returns()) {
    result_is_argument.push_back(result.alias_info() != nullptr);
    only_views = only_views && result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }

  // Indexing and masked_select find their shapes by nonzero, within their genuine kernel, which is computed there.
  shape_from_values = !writes_any && has_tag(handle, at::Tag::dynamic_output_shape) &&
                      !starts_with_one_of(name, {"aten::index", "aten::masked_select"});
  without_genuine = shape_from_values ||
                    (!writes_any && starts_with_one_of(name, {"aten::linalg_eig", "aten::_linalg_eigvals"}));
  keeps_workspaces = !writes_any && !without_genuine &&
                     starts_with_one_of(name, {"aten::linalg_", "aten::_linalg_", "aten::_fft_", "aten::cholesky",
                                                              "aten::_cholesky", "aten::geqrf", "aten::orgqr", "aten::ormqr",
                                                              "aten::lu_", "aten::triangular_solve"});
  overwrites = writes_any && (random || starts_with_one_of(name, {"aten::copy_", "aten::fill_", "aten::zero_"}));
  reads = starts_with_one_of(name, {"aten::_local_scalar_dense", "aten::equal"});
  checks_infinities = starts_with_one_of(name, {"aten::_amp_foreach_non_finite_check_and_unscale", "aten::_amp_non_finite_check"});
}

bool is_left_alone(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::_copy_from",
      "aten::_cslt_sparse_mm_search",
      "aten::_cudnn_init_dropout_state",
      "aten::_cudnn_rnn_flatten_weight",
      "aten::_efficientzerotensor",
      "aten::_fused_sdp_choice",
      "aten::_nested_tensor_from_mask_left_aligned",
      "aten::_pin_memory",
      "aten::_reshape_alias",
      "aten::_resize_output",
      "aten::_resize_output_",
      "aten::_use_cudnn_ctc_loss",
      "aten::_use_cudnn_ctc_loss.Tensor",
      "aten::_use_miopen_ctc_loss",
      "aten::_use_miopen_ctc_loss.Tensor",
      "aten::as_strided",
      "aten::empty.memory_format",
      "aten::empty_strided",
      "aten::is_pinned",
      "aten::is_set_to",
      "aten::record_stream",
      "aten::resize_",
      "aten::set_",
      "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset",
      "aten::set_.source_Tensor",
      "aten::unfold",
      "aten::view",
      "aten::view.dtype",
  };
  return names.count(name) != 0;
}

bool is_always_computed(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::copy_", "aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_"};
  return names.count(name) != 0;
}

}  // namespace simulator
