// SPDX-License-Identifier: Apache-2.0
// Note [Forward, never back]
// An allreduce gives all ranks the same bits, the optimizer steps once all gradients of its step
// are there, and no rank completes step N+1 before all have sent the gradients of N+1, which they
// do after step N. So survivors of a failure are at most one step apart, and each holds, between
// two steps, the state of its last one. If one has completed the step in which the failure came,
// all gradients were in it, those of the lost rank too: the others take its state. Else all repeat
// the step. Nothing is copied for that but buffers, which forward changes, and no message is sent.
// Generators are seeded before each step, and the sampler's place is that of the last step.
// Where a round has several steps, all this holds for rounds. Survivors may all have changed a part
// of the state then, so each keeps a copy of what the round began with.
#include "ronde/torch/elastic.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <tuple>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/run.h"
#include "ronde/torch/collectives.h"
#include "ronde/torch/objects.h"
#include "ronde/torch/random.h"
#include "torch_ext/src/checkpoint/stop_signals.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/elastic/elastic_state.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde::elastic {
namespace {

using Lines = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

/// What a holder has, in the order in which it is sent: the names of tensors; of each its dtype,
/// whether it is a buffer, the number of dimensions, and sizes; and each object's bytes.
using Inventory = std::tuple<Lines, Numbers, Lines>;

struct Sent {
  std::string name;
  at::Tensor tensor;
  bool is_buffer = false;
};

const std::string kSubject = "ronde::elastic::run";
const std::string kStateLost =
    kSubject +
    ": no rank is left that holds the state of a whole step: each was lost, or failed while its "
    "optimizer changed the parameters. Start again from a checkpoint (Options::resume)";

[[noreturn]] void refuse(const std::string& text) {
  throw UsageError(detail::rank_prefix() + kSubject + ": " + text);
}

/// `resumes`: replacements of these ranks load a checkpoint.
[[noreturn]] void lose_state(bool resumes) {
  if (is_elastic() && !resumes) fail_job(kStateLost);
  throw Error(kStateLost);
}

std::vector<Sent> list_tensors(const std::vector<detail::NamedObject>& objects) {
  std::vector<Sent> all;
  for (const detail::NamedObject& named : objects) {
    for (const bool is_buffer : {false, true}) {
      const auto& tensors = is_buffer ? named.object.buffers : named.object.tensors;
      if (!tensors) continue;
      for (const auto& [name, tensor] : tensors()) {
        if (!tensor.defined()) continue;
        const at::Tensor here = detail::plain_values(tensor).cpu();
        all.push_back({detail::entry_name(named.name, name), here, is_buffer});
      }
    }
  }
  return all;
}

Lines encode(const std::vector<detail::NamedObject>& objects) {
  Lines bytes;
  for (const detail::NamedObject& named : objects) {
    bytes.push_back(named.object.encode ? named.object.encode() : std::string());
  }
  return bytes;
}

Inventory take_inventory(const std::vector<detail::NamedObject>& objects) {
  Inventory inventory;
  auto& [names, forms, bytes] = inventory;
  for (const Sent& sent : list_tensors(objects)) {
    names.push_back(sent.name);
    const at::IntArrayRef sizes = sent.tensor.sizes();
    forms.insert(forms.end(), {static_cast<std::int64_t>(sent.tensor.scalar_type()),
                               std::int64_t{sent.is_buffer}, sent.tensor.dim()});
    forms.insert(forms.end(), sizes.begin(), sizes.end());
  }
  bytes = encode(objects);
  return inventory;
}

/// Makes memory for the tensors of an inventory.
std::vector<Sent> room_for(const Inventory& inventory) {
  const auto& [names, forms, bytes] = inventory;
  std::vector<Sent> all;
  auto form = forms.begin();
  for (const std::string& name : names) {
    const auto dtype = static_cast<at::ScalarType>(form[0]);
    const Numbers sizes(form + 3, form + 3 + form[2]);
    all.push_back({name, at::empty(sizes, dtype), form[1] != 0});
    form += 3 + form[2];
  }
  return all;
}

/// Sends the tensors from the holders, which divide them, to all. A holder's buffers stay its own.
void exchange(std::vector<Sent>& tensors, const std::vector<int>& holders) {
  std::vector<std::uint64_t> bytes;
  for (const Sent& sent : tensors) bytes.push_back(sent.tensor.nbytes());
  const std::vector<int> senders =
      detail::divide_among_ranks(bytes, static_cast<int>(holders.size()));
  const bool is_holder = std::ranges::find(holders, rank()) != holders.end();
  std::vector<TensorWork> works;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Sent& sent = tensors[i];
    const std::size_t sender = sent.is_buffer ? 0 : static_cast<std::size_t>(senders[i]);
    const int root = holders[sender];
    if (is_holder && rank() != root) sent.tensor = at::empty_like(sent.tensor);
    works.push_back(
        broadcast_async_(sent.tensor, {.name = "ronde::elastic/" + sent.name, .root = root}));
  }
  for (const TensorWork& work : works) static_cast<void>(work.wait());
}

detail::LoadedCheckpoint as_checkpoint(const std::vector<Sent>& tensors,
                                       const std::vector<detail::NamedObject>& objects,
                                       const Lines& bytes) {
  detail::LoadedCheckpoint loaded;
  for (const Sent& sent : tensors) loaded.items[sent.name].values = sent.tensor;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (!objects[i].object.encode) continue;
    const at::Tensor values = at::empty({static_cast<std::int64_t>(bytes.at(i).size())}, at::kByte);
    std::memcpy(values.mutable_data_ptr(), bytes[i].data(), bytes[i].size());
    loaded.items[objects[i].name].values = values;
  }
  return loaded;
}

/// Thrown through the body of a rank that leaves the job.
struct Drained {};

/// Copies without LibTorch's dispatcher where that is possible, as this is done in each step.
void copy_values(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu() && to.is_contiguous() && from.is_contiguous()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  const torch::NoGradGuard no_grad;
  to.copy_(from);
}

}  // namespace

State::Object::Object(std::string name, DistributedSampler& sampler)
    : name_(std::move(name)), sampler_(&sampler) {}

State::State(std::initializer_list<Object> objects) : impl_(std::make_unique<Impl>(step)) {
  for (const Object& object : objects) {
    impl_->add({.name = object.name_, .object = object.object_}, object.sampler_);
  }
}

State::~State() = default;

void State::after_step(std::function<void()> function) {
  impl_->after_step(std::move(function));
}

void State::Impl::add(detail::NamedObject object, DistributedSampler* sampler) {
  const auto same = [&](const detail::NamedObject& other) { return other.name == object.name; };
  if (object.name.empty() || object.name.find('/') != std::string::npos ||
      std::ranges::any_of(objects_, same)) {
    throw UsageError("ronde::elastic::State: \"" + object.name +
                     "\": give each object a name of its own, without \"/\"");
  }
  if (sampler != nullptr) {
    detail::SamplerLedger::record(*sampler);
    samplers_.push_back({object.name, sampler});
    const std::size_t index = samplers_.size() - 1;
    object.object.type = "sampler";
    object.object.encode = [this, index] {
      const auto& [epoch, position] = samplers_[index].place;
      return std::to_string(epoch) + " " + std::to_string(position);
    };
    object.object.load = [this, index](const auto&, const std::string& bytes) {
      std::size_t end = 0;
      const EpochPlace place{std::stoull(bytes, &end), std::stoull(bytes.substr(end))};
      return [this, index, place](bool keep) {
        if (keep) samplers_[index].place = place;
      };
    };
  }
  objects_.push_back(std::move(object));
}

void State::Impl::enter(const Options& options, int slot) {
  seed_ = options.seed;
  slot_ = slot;
  optimizer_ = nullptr;
  if (options.steps_per_round < 1) refuse("Options::steps_per_round is less than 1");
  steps_per_round_ = options.steps_per_round;
  steps_with_batches_ =
      options.steps_with_batches > 0 ? options.steps_with_batches : steps_per_round_;
  steps_ = passes_ = 0;
  counters_ = std::make_shared<detail::ElasticCounters>();
  default_runtime().add_stats([counters = counters_] { return counters->stats(); });
  for (const Sampler& each : samplers_) detail::SamplerLedger::regroup(*each.sampler);
  if (has_state_) restore_buffers();
  restore_copy();
  const bool resumes = options.resume != nullptr;
  std::vector<int> holding = holders(resumes);
  if (holding.empty()) {
    if (job_goes_on() && !resumes) lose_state(resumes);
    begin_job(options.resume);
    holding = {0};
  }
  if (static_cast<int>(holding.size()) < size()) receive(holding);
  has_state_ = true;
  is_whole_ = true;
  for (Sampler& each : samplers_) {
    each.sampler->set_epoch(each.place.epoch, each.place.position);
    each.ahead.reset();
  }
  save_buffers();
  seed_generators();
  keep_copy();
}

void State::Impl::begin_job(const std::function<std::int64_t()>& load) {
  if (load) step_ = load();
  for (Sampler& each : samplers_) each.place = {each.sampler->epoch(), each.sampler->position()};
}

/// Returns the ranks that have the state of the last step; none if all have just started.
std::vector<int> State::Impl::holders(bool resumes) {
  const at::Tensor mine =
      at::tensor({step_, std::int64_t{has_state_}, std::int64_t{is_whole_}}, at::kLong);
  const at::Tensor all = allgather(mine.unsqueeze(0), {.name = "ronde::elastic/steps"});
  const auto rows = all.accessor<std::int64_t, 2>();
  std::int64_t newest = -1;
  bool is_new = true;
  for (std::int64_t rank = 0; rank < rows.size(0); ++rank) {
    is_new = is_new && rows[rank][1] == 0;
    if (rows[rank][1] != 0 && rows[rank][2] != 0) newest = std::max(newest, rows[rank][0]);
  }
  if (is_new) return {};
  if (newest < 0) lose_state(resumes);
  std::vector<int> holding;
  for (std::int64_t rank = 0; rank < rows.size(0); ++rank) {
    const bool holds = rows[rank][1] != 0 && rows[rank][2] != 0 && rows[rank][0] == newest;
    if (holds) holding.push_back(static_cast<int>(rank));
  }
  return holding;
}

/// Sends the state from its holders to the others.
void State::Impl::receive(const std::vector<int>& holding) {
  const bool holds = std::ranges::find(holding, rank()) != holding.end();
  detail::Statement taken;
  Inventory inventory;
  taken.problem = detail::problem_of([&] {
    if (rank() == holding.front()) inventory = take_inventory(objects_);
  });
  detail::agree(kSubject, taken);
  std::get<Numbers>(inventory).push_back(step_);
  c10::IValue value(inventory);
  broadcast_object(value, {.name = "ronde::elastic/inventory", .root = holding.front()});
  inventory = value.to<Inventory>();
  const std::int64_t step = std::get<Numbers>(inventory).back();
  detail::Statement ready;
  std::vector<Sent> tensors;
  ready.problem =
      detail::problem_of([&] { tensors = holds ? list_tensors(objects_) : room_for(inventory); });
  ready.lines.push_back(std::to_string(objects_.size()) + " objects");
  for (const detail::NamedObject& named : objects_) ready.lines.push_back(named.name);
  detail::agree(kSubject, ready, kGlobalSet, {.advice = "Give State the same objects everywhere"});
  exchange(tensors, holding);
  for (const Sent& sent : tensors) counters_->received_bytes += holds ? 0 : sent.tensor.nbytes();
  detail::Statement decoded;
  std::vector<std::function<void(bool)>> finish;
  decoded.problem = detail::problem_of([&] {
    if (holds) return;
    const auto loaded = as_checkpoint(tensors, objects_, std::get<2>(inventory));
    for (const auto& named : objects_) finish.push_back(detail::load_object(named, loaded));
  });
  detail::agree(kSubject, decoded);
  is_whole_ = holds;
  for (const auto& function : finish) function(/*keep=*/true);
  step_ = step;
  is_whole_ = true;
}

void State::Impl::save_buffers() {
  if (buffers_.empty()) {
    for (const detail::NamedObject& named : objects_) {
      if (!named.object.buffers) continue;
      for (const auto& [name, tensor] : named.object.buffers()) {
        if (tensor.defined()) buffers_.emplace_back(tensor, at::empty_like(tensor));
      }
    }
  }
  for (const auto& [buffer, saved] : buffers_) copy_values(saved, buffer);
}

void State::Impl::restore_buffers() {
  for (const auto& [buffer, saved] : buffers_) copy_values(buffer, saved);
}

void State::Impl::keep_copy() {
  if (steps_per_round_ == 1) return;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Sent> tensors = list_tensors(objects_);
  std::uint64_t bytes = 0;
  for (Sent& sent : tensors) {
    const auto kept = copy_.items.find(sent.name);
    bytes += sent.tensor.nbytes();
    if (kept != copy_.items.end() && kept->second.values.sizes() == sent.tensor.sizes()) {
      copy_values(kept->second.values, std::exchange(sent.tensor, kept->second.values));
    } else {
      sent.tensor = sent.tensor.clone();
    }
  }
  copy_ = as_checkpoint(tensors, objects_, encode(objects_));
  if (std::exchange(copied_bytes_, bytes) == bytes) return;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  detail::rank_log(kGlobalSet)
      .info(kSubject + ": each round copies the state: " + std::to_string(bytes) + " bytes in " +
            std::to_string(took.count()) + " ms");
}

/// Goes back to the beginning of a round of which a part is done.
void State::Impl::restore_copy() {
  if (is_whole_ || copy_.items.empty()) return;
  for (const auto& named : objects_) detail::load_object(named, copy_)(/*keep=*/true);
  copy_ = {};  // objects may have taken its tensors
  is_whole_ = true;
}

void State::Impl::begin(const void* optimizer, const DistributedOptimizerOptions& options,
                        std::string_view kind) {
  if (!kind.empty()) {
    refuse("it cannot take over steps of " + std::string(kind) +
           ", which are more than one change of parameters that all ranks make alike. Use "
           "checkpoints and `ronde run --max-restarts` without --elastic");
  }
  if (!(options.process_set == kGlobalSet)) {
    refuse("its optimizer is one of all ranks, and \"" + options.name +
           "\" is one of a process set");
  }
  if (optimizer_ != nullptr && optimizer_ != optimizer && steps_per_round_ == 1) {
    refuse(
        "a second DistributedOptimizer steps, and a step of State is that of one optimizer: give "
        "the parameters of both to one, or set Options::steps_per_round");
  }
  optimizer_ = optimizer;
}

void State::Impl::commit(int passes) {
  is_whole_ = false;
  if (steps_++ < steps_with_batches_) passes_ += passes;
  if (steps_ < steps_per_round_) return;
  for (const auto& function : after_step_) function();
  const auto begin = std::chrono::steady_clock::now();
  for (Sampler& sampler : samplers_) use_batches(sampler, passes_);
  steps_ = passes_ = 0;
  save_buffers();
  ++step_;
  is_whole_ = true;
  seed_generators();
  ++counters_->steps;
  counters_->nanoseconds += static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  keep_copy();
  if (drains_ != nullptr && drains_->requested()) throw Drained();
  if (reform_is_wanted())
    abort("ranks that have come wait to join, at step " + std::to_string(step_));
}

/// A loader takes the same number of batches ahead after each step, if the loop uses one in each
/// pass.
void State::Impl::use_batches(Sampler& sampler, int passes) {
  const std::size_t unused = detail::SamplerLedger::unused(*sampler.sampler);
  const auto wanted = static_cast<std::size_t>(passes);
  const std::size_t ahead = unused - std::min(unused, wanted);
  const std::size_t epoch = sampler.place.epoch;
  if (unused >= wanted) sampler.place = detail::SamplerLedger::use(*sampler.sampler, wanted);
  if (sampler.place.epoch != epoch) sampler.ahead.reset();  // a loader that has begun again
  if (unused < wanted || ahead > sampler.ahead.value_or(ahead)) {
    refuse("step " + std::to_string(step_) + " has " + (unused < wanted ? "less" : "more") +
           " than one batch of sampler \"" + sampler.name +
           "\" in each backward pass: which samples were used is not known. Take one, or leave the "
           "sampler out of State and derive the samples from State::step");
  }
  sampler.ahead = ahead;
}

void State::Impl::seed_generators() const {
  torch::manual_seed(rank_seed(seed_ + static_cast<std::uint64_t>(step_), slot_));
}

namespace {

/// Has the steps of all optimizers observed.
class Observed {
 public:
  explicit Observed(detail::StepObserver& observer) {
    if (detail::StepObserver::current != nullptr) refuse("it was called inside its own body");
    detail::StepObserver::current = &observer;
  }
  ~Observed() { detail::StepObserver::current = nullptr; }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
};

void run_once(State& state, const Options& options, const std::function<void()>& body) {
  int slot = 0;
  if (is_elastic()) {
    slot = reform({.min_ranks = options.min_ranks}).own_slot;
  } else {
    if (!is_initialized()) init();
    slot = rank();
  }
  state.impl().enter(options, slot);
  body();
  shutdown();
}

}  // namespace

int run(State& state, const Options& options, const std::function<void()>& body) {
  if (is_elastic() && is_initialized()) {
    refuse(
        "the program has called ronde::init(), which run() does in an elastic job: leave it out");
  }
  const Observed observed(state.impl());
  const detail::StopSignals told(is_elastic() ? options.drain_signals : std::vector<int>(),
                                 kSubject, kGlobalSet);
  state.impl().drain_by(told);
  for (;;) {
    try {
      run_once(state, options, body);
      return 0;
    } catch (const Drained&) {
      detail::rank_log(kGlobalSet)
          .info("leaves the job after step " + std::to_string(state.step) + ", as it was told to");
      leave_job();
      return 0;
    } catch (const GroupError& error) {
      if (!is_elastic()) throw;
      detail::rank_log(kGlobalSet)
          .info("goes on from step " + std::to_string(state.step) + " after: " + error.what());
    }
  }
}

}  // namespace ronde::elastic
