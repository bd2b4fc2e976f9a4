// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/gradients/gradient_exchange.h"

// Note [Sparse gradients]
//
// Indices are sent as the rows of a matrix [entries, sparse dimensions], values as [entries, dense
// dimensions...]: both join along their first dimension. Before the indices of each rank comes a
// row with the number of its entries, or -1 if it has no gradient: this distinguishes no gradient
// from one without entries, which makes an optimizer count a step.
//
// Until a step has shown all ranks that the gradient is sparse, values are sent after the indices,
// which have the name of a dense gradient: a rank without a gradient yet, which takes part as for a
// dense one, then disagrees with the others instead of leaving them waiting. Afterwards indices and
// values are sent as a group in which values have no name, so that any operation that another rank
// submits under the gradient's name uses the same names.
//
// Values are multiplied by prescale and rounded to the wire type once. They are added in f32 (f64
// in f64), even those of one rank; the sum is scaled and rounded to the gradient's type once.
namespace ronde {
namespace detail {
namespace {

/// Gradients of embeddings have one sparse dimension, the rows.
constexpr std::int64_t kSparseDimensions = 1;

at::Tensor header(std::int64_t entries) {
  return at::full({1, kSparseDimensions}, entries, at::kLong);
}

/// Returns the indices of all ranks' entries, one column each; undefined if no rank has a gradient.
at::Tensor without_headers(const at::Tensor& rows) {
  std::vector<at::Tensor> parts;
  for (std::int64_t at = 0; at < rows.size(0);) {
    const auto entries = rows[at][0].item<std::int64_t>();
    ++at;
    if (entries < 0) continue;
    parts.push_back(rows.narrow(0, at, entries));
    at += entries;
  }
  return parts.empty() ? at::Tensor() : at::cat(parts).t().contiguous();
}

/// Returns the type in which values are added.
at::ScalarType wide(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

/// Returns this rank's scaled part of a sparse tensor, its values not yet rounded.
at::Tensor scaled_own(const at::Tensor& tensor, double prescale) {
  const at::Tensor own = tensor.to(wide(tensor.scalar_type())).coalesce();
  if (prescale == 1.0) return own;
  return at::_sparse_coo_tensor_unsafe(own.indices(), own.values() * prescale, own.sizes(),
                                       own.options())
      ._coalesced_(true);
}

/// Returns the coalesced sum or average of all ranks' entries.
at::Tensor combined(const at::Tensor& indices, const at::Tensor& values, const at::Tensor& like,
                    const AllreduceOptions& options, int ranks) {
  const at::Tensor terms = values.to(wide(like.scalar_type()));
  const at::Tensor sum =
      at::_sparse_coo_tensor_unsafe(indices.to(like.device()), terms, like.sizes(),
                                    terms.options().layout(at::kSparse))
          .coalesce();
  const double scale = options.postscale / (options.op == ReduceOp::Average ? ranks : 1);
  if (scale != 1.0) sum.values().mul_(scale);
  return sum.to(like.scalar_type());
}

/// Returns the type in which values of `type` are sent.
at::ScalarType sent_type(at::ScalarType type, std::optional<DataType> wire_dtype) {
  const bool is_full = type == at::kFloat || type == at::kDouble;
  if (!wire_dtype || !is_full) return type;
  return *wire_dtype == DataType::F16 ? at::kHalf : at::kBFloat16;
}

void check_wire(const std::string& what, const at::Tensor& tensor,
                const AllreduceOptions& options) {
  const std::optional<DataType> own = data_type_of(tensor.scalar_type());
  if (!options.wire_dtype || options.wire_dtype == own) return;
  const bool is_full = own == DataType::F32 || own == DataType::F64;
  const bool is_half = options.wire_dtype == DataType::F16 || options.wire_dtype == DataType::BF16;
  if (is_full && is_half) return;
  throw UsageError(what + " (" + describe(tensor) + "): wire_dtype is " +
                   std::string(to_string(*options.wire_dtype)) +
                   "; it is for values of f32 or f64, and f16 or bf16. Leave it out");
}

}  // namespace

SparseExchange::SparseExchange(ParameterSubject subject, at::Tensor parameter, int ranks,
                               std::optional<DataType> wire_dtype)
    : GradientExchange(std::move(subject), std::move(parameter)),
      ranks_(ranks),
      sent_type_(sent_type(parameter_.scalar_type(), wire_dtype)) {}

at::Tensor SparseExchange::no_values() const {
  std::vector<std::int64_t> shape = parameter_.sizes().vec();
  shape.at(0) = 0;
  return at::empty(shape, parameter_.options().requires_grad(false));
}

std::vector<Prepared> SparseExchange::begin(const AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  if (options.op != ReduceOp::Average && options.op != ReduceOp::Sum) {
    subject_.refuse("its gradient is sparse, which takes ReduceOp Average or Sum, and op is " +
                    std::string(to_string(options.op)) + ". Set sparse_as_dense");
  }
  sent_ = parameter_.grad();
  if (sent_.defined() && sent_.sparse_dim() != kSparseDimensions) {
    subject_.refuse("its gradient has " + std::to_string(sent_.sparse_dim()) +
                    " sparse dimensions; Ronde takes those with one, as embeddings have. Set "
                    "sparse_as_dense");
  }
  options_ = options;
  // The last exchange may have failed between its rounds.
  indices_.reset();
  const at::Tensor own = sent_.defined() ? scaled_own(sent_, options.prescale) : at::Tensor();
  values_ = (own.defined() ? own.values() : no_values()).to(sent_type_);
  std::vector<Prepared> prepared = one(prepare_gather(
      own.defined() ? at::cat({header(own._nnz()), own.indices().t().cpu()}) : header(-1),
      options.name, options_));
  if (is_agreed_) prepared.push_back(prepare_gather(std::exchange(values_, {}), {}, options_));
  return prepared;
}

std::vector<Prepared> SparseExchange::proceed(const std::vector<TensorWork>& works,
                                              std::optional<bool>) {
  const at::NoGradGuard no_grad;
  if (is_agreed_) {
    finish(works.at(0).wait(), works.at(1).wait());
    return {};
  }
  if (!indices_.defined()) {
    indices_ = works.front().wait();
    return one(prepare_gather(std::exchange(values_, {}), options_.name + "/values", options_));
  }
  finish(std::exchange(indices_, {}), works.front().wait());
  return {};
}

void SparseExchange::finish(const at::Tensor& rows, const at::Tensor& values) {
  const at::Tensor sent = std::exchange(sent_, {});
  if (sent.defined() && !parameter_.grad().is_same(sent)) subject_.refuse(kGradientReplaced);
  const at::Tensor indices = without_headers(rows);
  if (!indices.defined()) return;
  parameter_.mutable_grad() = combined(indices, values, parameter_, options_, ranks_);
}

}  // namespace detail

at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  const std::string what = detail::caller("sparse_allreduce", options);
  if (!tensor.defined() || tensor.layout() != at::kSparse) {
    throw UsageError(what + " (" + detail::describe(tensor) +
                     "): the tensor is not sparse (layout COO). Call allreduce()");
  }
  if (options.op != ReduceOp::Average && options.op != ReduceOp::Sum) {
    throw UsageError(what + ": sparse tensors take ReduceOp Average or Sum, and op is " +
                     std::string(to_string(options.op)) + ". Call to_dense() and allreduce()");
  }
  const bool is_scaled =
      options.op == ReduceOp::Average || options.prescale != 1.0 || options.postscale != 1.0;
  if (is_scaled && !tensor.is_floating_point()) {
    throw UsageError(what + " (" + detail::describe(tensor) +
                     "): sparse tensors of integers and bools have no average and no factors. Use "
                     "ReduceOp::Sum, or convert the values to f64");
  }
  detail::check_wire(what, tensor, options);
  const at::Tensor own = detail::scaled_own(tensor.detach(), options.prescale);
  const at::Tensor mine =
      own.values().to(detail::sent_type(tensor.scalar_type(), options.wire_dtype));
  const auto named = [&options](const std::string& part) {
    return AllgatherOptions{options.name.empty() ? "" : options.name + part, options.process_set,
                            options.timeout};
  };
  const TensorWork indices = allgather_async(own.indices().t(), named("/indices"));
  const at::Tensor values = allgather(mine, named("/values"));
  return detail::combined(indices.wait().t(), values, tensor, options,
                          static_cast<int>(ranks_of(options.process_set).size()));
}

}  // namespace ronde
