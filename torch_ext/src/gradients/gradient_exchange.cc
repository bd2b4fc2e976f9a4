// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/gradients/gradient_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "ronde/error.h"

namespace ronde::detail {
namespace {

/// Stands in for the gradient of a rank that has none.
at::Tensor zeros_for(const at::Tensor& parameter) {
  return at::zeros(parameter.sizes(), parameter.options().requires_grad(false));
}

/// As autograd would have made the gradient: with the parameter's strides.
at::Tensor laid_out_as(const at::Tensor& parameter, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  return at::empty_like(parameter, parameter.options().requires_grad(false)).copy_(values);
}

/// An allreduce in place.
Prepared reduction(const at::Tensor& tensor, const AllreduceOptions& options, bool contributes) {
  check_writable(caller("allreduce_", options.name, options.process_set), tensor);
  check_reducible(caller("allreduce_", options.name, options.process_set), tensor, options.op);
  Request request = request_for(Collective::Allreduce, tensor, options);
  request.contributes = contributes;
  Prepared prepared = prepare_in_place(std::move(request), tensor, true);
  note_written(tensor);
  return prepared;
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

std::string ParameterSubject::text(const std::string& text) const {
  return rank_prefix(set) + "ronde::DistributedOptimizer(\"" + scope + "\"): parameter \"" + name +
         "\": " + text;
}

void ParameterSubject::refuse(const std::string& text) const {
  throw UsageError(this->text(text));
}

DenseExchange::DenseExchange(ParameterSubject subject, at::Tensor parameter, GradientView* view,
                             bool lazy, bool is_grouped)
    : subject_(std::move(subject)),
      parameter_(std::move(parameter)),
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
        "autograd function of the program, say). Let go of it before step(), or set "
        "DistributedOptimizerOptions::gradient_views to false on all ranks");
  }
  const at::Tensor& gradient = parameter_.grad();
  copies_back_ = !stands_in_ && !view_->holds(gradient);
  if (copies_back_) {
    check_writable(caller("allreduce_", options.name, options.process_set), gradient);
    const at::NoGradGuard no_grad;
    view_->tensor().copy_(gradient);
  }
  reduced_ = stands_in_ ? view_->tensor() : gradient;
}

/// `target`: the view's memory, or the gradient.
Prepared DenseExchange::reduce(const at::Tensor& target, const AllreduceOptions& options) {
  const auto request = [&] {
    Request made = request_for(Collective::Allreduce, target, options);
    made.symmetric = view_ != nullptr;
    made.lazy = view_ != nullptr && lazy_;
    return made;
  };
  const bool repeats = !is_grouped_ && is_row_major(target);
  const bool is_known = repeats && is_prepared_for(target, options);
  if (!is_known) {
    check_writable(caller("allreduce_", options.name, options.process_set), target);
    check_reducible(caller("allreduce_", options.name, options.process_set), target, options.op);
  }
  Prepared prepared;
  if (!repeats) {
    prepared = prepare_in_place(request(), target, true);
    prepared.request.contributes = !stands_in_;
  } else {
    if (!is_known) {
      Request described = request();
      described.output = target.mutable_data_ptr();
      operation_ = prepare(std::move(described));
      prepared_options_ = options;
      prepared_shape_ = target.sizes().vec();
      prepared_type_ = target.options();
    }
    prepared = prepare_again(operation_, target, !stands_in_);
  }
  note_written(target);
  return prepared;
}

bool DenseExchange::is_prepared_for(const at::Tensor& target,
                                    const AllreduceOptions& options) const {
  const AllreduceOptions& known = prepared_options_;
  // The rest is that of the parameter, and stays as it was when that was wrapped.
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
    : subject_(std::move(subject)),
      parameter_(std::move(parameter)),
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
    // The usual case, of one part in one round, has the name of the parameter alone. Parts behind
    // the first go without one: a rank that cannot send them has used all names all the same.
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
  return reduction(part.tensor, options, !stands_in_);
}

Prepared CompressedExchange::gather(const at::Tensor& tensor, const std::string& name) const {
  check_tensor(caller("allgather", name, options_.process_set), tensor);
  const at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  const at::Tensor sent = stands_in_ ? rows.narrow(0, 0, 0) : rows;
  const AllgatherOptions options{name, options_.process_set, options_.timeout};
  return prepare_allocating(request_for(Collective::Allgather, sent, options), sent);
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

}  // namespace ronde::detail
