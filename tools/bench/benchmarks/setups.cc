// SPDX-License-Identifier: Apache-2.0
// Allreduces of one buffer on each GPU by several backends. Each backend is first tried and its sum
// checked; then the backends take turns with each other and with a copy within the GPU. A model's
// gradients are fused into messages as the engine would, each message is measured, and the medians
// are summed up by the class of the message's size.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "backends/compose.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/ipc/ipc_peers.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/gpu/kernels/kernel_image.h"
#include "observe/report/text.h"
#include "tools/bench/base/gradient_lists.h"
#include "tools/bench/base/pattern.h"
#include "tools/bench/benchmarks/benchmarks.h"

namespace ronde::tool {
namespace {

constexpr std::size_t kSyncBytes = 4096;

std::vector<int> all_ranks(const Topology& topology) {
  std::vector<int> ranks(static_cast<std::size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// A bare synchronisation of all ranks' threads and then of their GPUs' streams: the floor under an
/// allreduce of few bytes.
class PeerSync {
 public:
  /// On GPU `device`.
  PeerSync(Session& session, const GpuAccess& access, int device);

  /// Collective: tries the synchronisation. Returns whether it works, the same on all ranks.
  bool connect();
  void run();
  /// Releases what belongs to other ranks.
  void forget() { peers_.let(); }

 private:
  Session& session_;
  const std::shared_ptr<cuda::CudaStreams> streams_;
  cuda::GpuResources bench_;
  cuda::IpcPeers peers_;
  gpu::HostExchange exchange_;
};

PeerSync::PeerSync(Session& session, const GpuAccess& access, int device)
    : session_(session),
      streams_(std::make_shared<cuda::CudaStreams>(cuda::load_driver(access.symbols).api)),
      bench_(*streams_, device,
             access.kernel_image != nullptr ? access.kernel_image : cuda::kernel_image(),
             kSyncBytes),
      peers_(bench_, all_ranks(session.topology()),
             static_cast<std::size_t>(session.topology().rank)),
      exchange_(session.raw().host(), session.topology().size) {}

bool PeerSync::connect() {
  if (session_.topology().size == 1 || session_.topology().hosts() > 1) return false;
  std::string problem;
  const std::vector<std::string> all;
  Steps steps = peers_.connect(exchange_, all, CudaOptions().ipc_patience, problem);
  session_.raw().wait_until([&] { return steps.poll(); }, "the trial of CUDA IPC");
  return problem.empty();
}

void PeerSync::run() {
  peers_.record();
  // As in an operation, the ranks' threads tell each other that all have queued theirs.
  Steps told = exchange_.share(0);
  session_.raw().wait_until([&] { return told.poll(); }, "a synchronisation");
  peers_.wait_for_all();
  const auto event = cuda::CudaStreams::mark(bench_.stream());
  session_.raw().wait_until([&] { return event->passed(); }, "a synchronisation on the GPU");
}

using Counts = std::vector<std::size_t>;

std::size_t elements_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// The gradients of a model in the order in which backward makes them, fused up to `limit` bytes.
std::vector<Counts> messages_of(const GradientList& list, std::size_t limit) {
  std::vector<Counts> messages;
  for (auto count = list.tensors.rbegin(); count != list.tensors.rend(); ++count) {
    const bool fits =
        !messages.empty() && (elements_of(messages.back()) + *count) * sizeof(float) <= limit;
    if (!fits) messages.emplace_back();
    messages.back().push_back(*count);
  }
  return messages;
}

/// A run on all ranks.
class Setups {
 public:
  Setups(Session& session, const GpuAccess& access)
      : session_(session),
        config_(load_config_from_environment().config),
        known_(gpu_setups(config_, access.symbols, access.kernel_image)),
        names_(wanted()),
        report_(session.report()) {
    std::size_t bytes = session.options().max_bytes;
    for (const std::string& model : session.options().models) {
      for (const Counts& counts : messages_of(gradient_list(model), config_.fusion_bytes)) {
        bytes = std::max(bytes, elements_of(counts) * sizeof(float));
      }
    }
    session_.alike([&] {
      pages_ = make_gpu_pages(access, session.topology(), bytes);
      copy_ = make_gpu_pages(access, session.topology(), bytes);
      sync_ = std::make_unique<PeerSync>(session, access, pages_->device().index);
    });
  }

  void run() {
    has_sync_ = sync_->connect();
    report_.say("allreduce, f32, " + session_.description() + ", on " + pages_->device_name());
    for (const std::string& name : names_) {
      const std::string why = make(name);
      if (!why.empty()) report_.say("left out: " + name + ": " + why);
    }
    if (pages_->is_shared()) {
      report_.say(
          "ranks share this GPU and run on it in turns: waiting for each other costs them time "
          "slices. Which way is faster with a GPU each, this cannot tell.");
    }
    sweep();
    for (const std::string& model : session_.options().models) add_model(gradient_list(model));
    end();
    session_.finish(report_);
  }

  /// The backends release the other ranks' memory, so that each rank can free its own. Also after a
  /// CommonError. Collective.
  void end() {
    sync_->forget();
    session_.raw().release_peer_memory();
  }

 private:
  using Times = std::map<std::string, double>;

  /// Throws UsageError for a set-up that there is not.
  std::vector<std::string> wanted() const {
    const std::vector<std::string>& asked = session_.options().setups;
    for (const std::string& name : asked) {
      if (known_.contains(name)) continue;
      std::string text = "--setup: there is no set-up \"" + name + "\"; use one of:";
      for (const auto& [each, factory] : known_) text += " " + each;
      throw UsageError(text);
    }
    if (!asked.empty()) return asked;
    return {"mpi", "mpi-reg", "mpi-opt", "mpi-opt-nocache", "nccl"};
  }

  /// Makes the backend and tries it. Returns what goes wrong, on the first rank where it does.
  std::string make(const std::string& name) {
    const BackendFactory& factory = known_.at(name);
    std::string why = session_.first_of(factory.problem ? factory.problem() : std::string());
    if (!why.empty()) return why;
    Backend* backend = nullptr;
    std::string error;
    try {
      backend = &session_.raw().add(factory);
      reduce(*backend, {1}, name);
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    why = session_.first_of(error);
    if (why.empty()) setups_.emplace_back(name, backend);
    return why;
  }

  /// Sums the first elements of the buffer, as segments of these counts, and waits for the result.
  void reduce(Backend& backend, const Counts& counts, const std::string& name) {
    segments_.clear();
    std::byte* data = pages_->data();
    for (const std::size_t count : counts) {
      segments_.push_back({data, data, count});
      data += count * sizeof(float);
    }
    const std::unique_ptr<Operation> operation =
        backend.allreduce({.segments = segments_, .place = {.device = pages_->device()}});
    session_.raw().finish(*operation, "an allreduce by set-up " + name);
  }

  /// Compares the sum of known elements with a closed form, and leaves zeros. Collective; throws
  /// CommonError if it is wrong on a rank.
  void check(Backend& backend, const Counts& counts, const std::string& name) {
    const Place place{session_.topology().rank, session_.topology().size};
    std::vector<float> values(elements_of(counts));
    const std::size_t bytes = values.size() * sizeof(float);
    fill(DataType::F32, values.data(), values.size(),
         [&](std::size_t index) { return pattern(place.rank, index); });
    pages_->copy(pages_->data(), values.data(), bytes);
    reduce(backend, counts, name);
    pages_->copy(values.data(), pages_->data(), bytes);
    session_.alike([&] {
      const std::string wrong =
          difference(DataType::F32, values.data(), values.size(),
                     [&](std::size_t index) { return sum_of_ranks(place, index); });
      if (!wrong.empty()) throw Error("the sum by " + name + " is wrong: " + wrong);
    });
    pages_->zero(pages_->data(), bytes);
  }

  int iterations() const { return session_.options().iterations.value_or(20); }

  /// Median microseconds of each set-up, of a copy and, if wanted, of a bare synchronisation.
  Times measure(const Counts& counts, bool synchronizes) {
    const std::size_t bytes = elements_of(counts) * sizeof(float);
    // Copies of ranks that share the GPU would take turns.
    std::vector<std::string> names = {"copy"};
    std::vector<Contender> contenders = {{[&] {
      if (session_.topology().rank == 0) pages_->copy(copy_->data(), pages_->data(), bytes);
    }}};
    if (synchronizes && has_sync_) {
      names.emplace_back(kSync);
      contenders.push_back({[this] { sync_->run(); }});
    }
    for (const auto& [name, backend] : setups_) {
      check(*backend, counts, name);
      names.push_back(name);
      contenders.push_back(
          {[&, name = name, backend = backend] { reduce(*backend, counts, name); }});
    }
    const BenchOptions& options = session_.options();
    const auto samples = take_turns(session_.peers(), contenders, options.warmup, iterations());
    Times times;
    for (std::size_t i = 0; i < names.size(); ++i) times[names[i]] = median(samples[i]);
    return times;
  }

  /// The columns of times, behind `first`.
  std::vector<Column> columns(std::vector<Column> first, const std::string& unit,
                              int digits) const {
    first.push_back({"copy " + unit, "copy_" + unit, digits});
    for (const std::string& name : names_) {
      first.push_back({name + " " + unit, name + "_" + unit, digits});
    }
    for (const char* const slow : kSlower) {
      first.push_back({slow + std::string("/mpi-opt"), slow + std::string("_over_mpi-opt"), 2});
    }
    return first;
  }

  void add_row(Json row, const Times& times, const std::string& unit, double factor) {
    row["benchmark"] = "setups";
    row["ranks"] = session_.topology().size;
    row["iterations"] = iterations();
    row["gpu"] = pages_->device_name();
    const auto time = [&](const std::string& name) {
      return times.contains(name) ? Json(times.at(name) * factor) : Json();
    };
    row["copy" + unit] = time("copy");
    row[kSync + unit] = time(kSync);
    for (const std::string& name : names_) row[name + unit] = time(name);
    for (const std::string slow : kSlower) {
      const bool both = times.contains(slow) && times.contains("mpi-opt");
      row[slow + "_over_mpi-opt"] = both ? Json(times.at(slow) / times.at("mpi-opt")) : Json();
    }
    report_.add(std::move(row));
  }

  void sweep() {
    report_.begin_table(
        columns({{"bytes", "bytes"}, {"sync-flags us", "sync-flags_us", 2}}, "us", 2));
    const BenchOptions& options = session_.options();
    for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 2) {
      if (bytes >= sizeof(float)) {
        add_row({{"bytes", bytes}}, measure({bytes / sizeof(float)}, true), "_us", 1.0);
      }
      if (bytes > options.max_bytes / 2) break;
    }
  }

  /// A row for each class of sizes, and one for all.
  void add_model(const GradientList& list) {
    report_.say("all gradients of " + std::string(list.model) + ", fused, by the size of messages");
    report_.begin_table(
        columns({{"messages", "class"}, {"number", "messages"}, {"bytes", "bytes"}}, "ms", 3));
    struct Sum {
      std::size_t messages = 0;
      std::size_t bytes = 0;
      Times times;
    };
    std::array<Sum, kSizeClasses.size() + 1> sums;
    for (const Counts& counts : messages_of(list, config_.fusion_bytes)) {
      const std::size_t bytes = elements_of(counts) * sizeof(float);
      std::size_t which = 0;
      while (bytes > kSizeClasses[which].most_bytes) ++which;
      const Times times = measure(counts, false);
      for (Sum* const sum : {&sums[which], &sums.back()}) {
        sum->messages += 1;
        sum->bytes += bytes;
        for (const auto& [name, us] : times) sum->times[name] += us;
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].messages == 0) continue;
      add_row({{"model", list.model},
               {"class", i < kSizeClasses.size() ? kSizeClasses[i].title : "all"},
               {"messages", sums[i].messages},
               {"bytes", sums[i].bytes}},
              sums[i].times, "_ms", 1e-3);
    }
  }

  /// The name of a bare synchronisation.
  static inline const std::string kSync = "sync-flags";
  /// The set-ups whose times are shown over those of mpi-opt.
  static constexpr std::array kSlower = {"mpi", "mpi-reg", "mpi-opt-nocache"};

  Session& session_;
  const Config config_;
  const BackendRegistry known_;
  const std::vector<std::string> names_;  ///< that are wanted
  Report report_;
  std::unique_ptr<Pages> pages_, copy_;
  std::unique_ptr<PeerSync> sync_;
  bool has_sync_ = false;                                 ///< it works
  std::vector<std::pair<std::string, Backend*>> setups_;  ///< that work
  std::vector<Segment> segments_;
};

}  // namespace

void run_setups(Session& session, const GpuAccess& access) {
  Setups setups(session, access);
  try {
    setups.run();
  } catch (const CommonError&) {
    setups.end();
    throw;
  }
}

}  // namespace ronde::tool
