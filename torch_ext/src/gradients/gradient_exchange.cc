// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/gradient_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::detail {
namespace {

/// Returns the contribution of a rank without a gradient.
at::Tensor zeros_for(const at::Tensor& parameter) {
  return at::zeros(parameter.sizes(), parameter.options().requires_grad(false));
}

/// Copies `values` into a tensor with the strides that autograd gives gradients, the parameter's.
at::Tensor laid_out_as(const at::Tensor& parameter, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  return at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(values);
}

constexpr const char* kInFlight =
    "its gradient is being reduced, and can be neither read nor written. Call synchronize() of the "
    "DistributedOptimizer first (before clip_grad_norm_, say), and grad() again for a handle that "
    "was taken before it; to step, call step() of the DistributedOptimizer, not of the inner "
    "optimizer";

at::Tensor make_stand_in(const ParameterSubject& subject, const at::Tensor& parameter) {
  at::Tensor tensor = at::for_blob(nullptr, parameter.sizes())
                          .options(parameter.options().requires_grad(false))
                          .target_device(parameter.device())
                          .make_tensor();
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      subject.text(kInFlight));
  return tensor;
}

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

}  // namespace

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor;
}

std::vector<Prepared> one(Prepared prepared) {
  std::vector<Prepared> list;
  list.push_back(std::move(prepared));
  return list;
}

Prepared prepare_gather(const at::Tensor& rows, const std::string& name,
                        const AllreduceOptions& reduction) {
  const AllgatherOptions options{name, reduction.process_set, reduction.timeout};
  return prepare_allocating(request_for(Collective::Allgather, rows, options), rows);
}

std::string ParameterSubject::text(const std::string& text) const {
  return rank_prefix(set) + "ronde::DistributedOptimizer(\"" + scope + "\"): parameter \"" + name +
         "\": " + text;
}

void ParameterSubject::refuse(const std::string& text) const {
  throw UsageError(this->text(text));
}

DenseExchange::DenseExchange(ParameterSubject subject, at::Tensor parameter, GradientView* view,
                             bool lazy, bool is_grouped)
    : GradientExchange(std::move(subject), std::move(parameter)),
      view_(view),
      lazy_(lazy),
      is_grouped_(is_grouped) {}

std::vector<Prepared> DenseExchange::begin(const AllreduceOptions& options) {
  const at::Tensor& gradient = parameter_.grad();
  stands_in_ = !gradient.defined();
  if (view_ != nullptr) {
    move_to_view(options);
    return one(reduce(view_->flat(), options));
  }
  reduced_ = stands_in_ ? zeros_for(parameter_) : gradient;
  return one(reduce(reduced_, options));
}

void DenseExchange::move_to_view(const AllreduceOptions& options) {
  if (view_->is_occupied()) {
    subject_.refuse(
        "a tensor that backward made in the memory of its gradient view is still kept (by an "
        "autograd function of the program, say). Release it before step(), or set "
        "DistributedOptimizerOptions::gradient_views to false on all ranks");
  }
  const at::Tensor& gradient = parameter_.grad();
  copies_back_ = !stands_in_ && !view_->holds(gradient);
  if (copies_back_) {
    check_writable(caller("allreduce_", options), gradient);
    const at::NoGradGuard no_grad;
    view_->tensor().copy_(gradient);
  }
  reduced_ = stands_in_ ? view_->tensor() : gradient;
}

/// `target`: the view's memory, or the gradient.
Prepared DenseExchange::reduce(const at::Tensor& target, const AllreduceOptions& options) {
  const bool repeats = !is_grouped_ && is_row_major(target);
  if (!repeats || !is_prepared_for(target, options)) {
    const std::string what = caller("allreduce_", options);
    check_writable(what, target);
    check_reducible(what, target, options.op);
    Request request = request_for(Collective::Allreduce, target, options);
    request.symmetric = view_ != nullptr;
    request.lazy = view_ != nullptr && lazy_;
    if (!repeats) {
      request.contributes = !stands_in_;
      Prepared once = prepare_in_place(std::move(request), target, true);
      mark_written(target);
      return once;
    }
    request.output = target.mutable_data_ptr();
    operation_ = prepare(std::move(request));
    prepared_options_ = options;
    prepared_shape_ = target.sizes().vec();
    prepared_type_ = target.options();
  }
  mark_written(target);
  return prepare_again(operation_, target, !stands_in_);
}

bool DenseExchange::is_prepared_for(const at::Tensor& target,
                                    const AllreduceOptions& options) const {
  const AllreduceOptions& known = prepared_options_;
  // Everything else is constant since the parameter was wrapped.
  return operation_ && target.sizes() == prepared_shape_ &&
         target.dtype() == prepared_type_.dtype() && target.device() == prepared_type_.device() &&
         known.op == options.op && known.prescale == options.prescale &&
         known.postscale == options.postscale && known.timeout == options.timeout;
}

std::vector<Prepared> DenseExchange::proceed(const std::vector<TensorWork>& works,
                                             std::optional<bool> is_present) {
  const at::Tensor reduced = std::exchange(reduced_, {});
  if (!stands_in_) {
    if (!parameter_.grad().is_same(reduced)) subject_.refuse(kGradientReplaced);
    if (copies_back_) reduced.detach().copy_(view_->tensor());
    return {};
  }
  if (!is_present.value_or(works.front().contributed())) return {};
  parameter_.mutable_grad() = view_ != nullptr ? reduced : laid_out_as(parameter_, reduced);
  return {};
}

CompressedExchange::CompressedExchange(ParameterSubject subject, at::Tensor parameter,
                                       std::unique_ptr<CompressedGradient> compressed, int ranks)
    : GradientExchange(std::move(subject), std::move(parameter)),
      compressed_(std::move(compressed)),
      ranks_(ranks) {}

std::vector<Prepared> CompressedExchange::begin(const AllreduceOptions& options) {
  options_ = options;
  stands_in_ = !parameter_.grad().defined();
  present_ = false;
  round_ = 0;
  gradient_ = stands_in_ ? laid_out_as(parameter_, zeros_for(parameter_)) : parameter_.grad();
  const at::NoGradGuard no_grad;
  resolved_ = gradient_.detach().resolve_conj().resolve_neg();
  values_ = as_real(resolved_);
  const std::vector<CompressedPart> parts =
      compressed_->compress(values_, {.op = options.op,
                                      .prescale = options.prescale,
                                      .postscale = options.postscale,
                                      .ranks = ranks_,
                                      .contributes = !stands_in_});
  if (parts.empty()) subject_.refuse("its compression returned nothing to send");
  return send(parts);
}

std::vector<Prepared> CompressedExchange::send(const std::vector<CompressedPart>& parts) {
  parts_ = parts;
  std::vector<Prepared> prepared;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    // The usual case, one part in one round, uses the name of the parameter. Parts behind the first
    // have none: so a rank that cannot send them has still used all names.
    std::string name = options_.name;
    if (round_ > 0) name += "/round " + std::to_string(round_);
    if (i > 0) name.clear();
    prepared.push_back(parts_[i].combine == CompressedPart::Combine::Reduce
                           ? reduce(parts_[i], name)
                           : gather(parts_[i].tensor, name));
  }
  ++round_;
  return prepared;
}

Prepared CompressedExchange::reduce(const CompressedPart& part, const std::string& name) const {
  AllreduceOptions options = options_;
  options.name = name;
  options.wire_dtype = part.wire_dtype;
  const std::string what = caller("allreduce_", options);
  check_writable(what, part.tensor);
  check_reducible(what, part.tensor, options.op);
  Request request = request_for(Collective::Allreduce, part.tensor, options);
  request.contributes = !stands_in_;
  Prepared prepared = prepare_in_place(std::move(request), part.tensor, true);
  mark_written(part.tensor);
  return prepared;
}

Prepared CompressedExchange::gather(const at::Tensor& tensor, const std::string& name) const {
  check_tensor(caller("allgather", name, options_.process_set), tensor);
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  const at::Tensor sent = stands_in_ ? rows.narrow(0, 0, 0) : rows;
  return prepare_gather(sent, name, options_);
}

bool CompressedExchange::is_present(const std::vector<TensorWork>& works) const {
  for (std::size_t i = 0; i < works.size(); ++i) {
    const bool is_reduced = parts_[i].combine == CompressedPart::Combine::Reduce;
    if (is_reduced ? works[i].contributed() : works[i].wait().numel() > 0) return true;
  }
  return false;
}

std::vector<Prepared> CompressedExchange::proceed(const std::vector<TensorWork>& works,
                                                  std::optional<bool> is_present) {
  present_ = present_ || is_present.value_or(this->is_present(works));
  std::vector<at::Tensor> results;
  for (const TensorWork& work : works) results.push_back(work.wait());
  const at::NoGradGuard no_grad;
  if (!stands_in_ && !parameter_.grad().is_same(gradient_)) subject_.refuse(kGradientReplaced);
  const std::vector<CompressedPart> next = compressed_->decompress(results, values_);
  if (!next.empty()) return send(next);
  if (!resolved_.is_alias_of(gradient_)) gradient_.detach().copy_(resolved_);
  if (stands_in_ && present_) parameter_.mutable_grad() = gradient_;
  gradient_.reset();
  resolved_.reset();
  values_.reset();
  parts_.clear();
  return {};
}

Prepared prepare_refusal(const std::string& name, const at::Tensor& parameter, ProcessSet set,
                         std::chrono::nanoseconds timeout, const std::exception_ptr& error) {
  Request request;
  request.name = name;
  request.device = native_device(parameter);
  request.set = set;
  request.timeout = timeout;
  request.refusal = problem_of([&error] { std::rethrow_exception(error); }) +
                    "\nNo rank takes this step, as not all ranks could do their part: call "
                    "zero_grad() to go on without it";
  return {std::move(request), std::make_shared<TensorOperation>()};
}

void GradientGuard::hide(const ParameterSubject& subject, const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (!stand_in_.defined()) stand_in_ = make_stand_in(subject, parameter);
  version_ = version_of(gradient);
  gradient_ = std::exchange(gradient, stand_in_);
}

bool GradientGuard::restore(const at::Tensor& parameter) {
  if (!gradient_.defined()) return true;
  const at::Tensor gradient = std::exchange(gradient_, {});
  if (parameter.grad().is_same(stand_in_)) parameter.mutable_grad() = gradient;
  // Views of one buffer share a counter, which accumulation into another view moves.
  return gradient.is_view() || version_of(gradient) == version_;
}

}  // namespace ronde::detail

namespace ronde {
namespace {

/// Leaves the conversion to the engine, which does it in the pass that packs and unpacks.
class OnTheWire final : public CompressedGradient {
 public:
  explicit OnTheWire(DataType wire_dtype) : wire_dtype_(wire_dtype) {}

  std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                       const GradientReduction&) override {
    return {{.tensor = gradient, .wire_dtype = wire_dtype_}};
  }

  std::vector<CompressedPart> decompress(const std::vector<at::Tensor>& results,
                                         const at::Tensor& gradient) override {
    if (!results.front().is_same(gradient)) gradient.copy_(results.front());
    return {};
  }

 private:
  const DataType wire_dtype_;
};

class HalfPrecision final : public Compression {
 public:
  HalfPrecision(std::string name, DataType wire_dtype)
      : name_(std::move(name)), wire_dtype_(wire_dtype) {}

  std::string description() const override { return name_; }

  std::unique_ptr<CompressedGradient> make(const std::string&,
                                           const at::Tensor& parameter) override {
    const at::ScalarType type = parameter.scalar_type();
    if (type != at::kFloat && type != at::kDouble) return nullptr;
    return std::make_unique<OnTheWire>(wire_dtype_);
  }

  std::optional<DataType> sparse_dtype() const override { return wire_dtype_; }

 private:
  const std::string name_;
  const DataType wire_dtype_;
};

}  // namespace

std::optional<DataType> detail::wire_dtype_of(const std::shared_ptr<Compression>& compression) {
  if (dynamic_cast<const HalfPrecision*>(compression.get()) == nullptr) return std::nullopt;
  return compression->sparse_dtype();
}

std::shared_ptr<Compression> Compression::fp16() {
  return std::make_shared<HalfPrecision>("fp16", DataType::F16);
}

std::shared_ptr<Compression> Compression::bf16() {
  return std::make_shared<HalfPrecision>("bf16", DataType::BF16);
}

}  // namespace ronde
