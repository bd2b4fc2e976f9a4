// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/session/session.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>

#include "observe/report/text.h"
#include "ronde/ronde.h"

namespace ronde::tool {
namespace {

void set_environment(const BenchOptions& options) {
  constexpr int kReplace = 1;
  constexpr int kKeepWhatIsSet = 0;
  const bool on_cpu = options.device == DeviceKind::Cpu;
  const char* const variable = on_cpu ? "RONDE_CPU_BACKEND" : "RONDE_GPU_BACKEND";
  if (options.backend) setenv(variable, options.backend->c_str(), kReplace);
  setenv("RONDE_LOG_LEVEL", "warning", kKeepWhatIsSet);  // the table is the output
  if (options.baseline) let_mpi_be_fast();
}

/// Ronde's public functions, between ronde::init() and ronde::shutdown(). Throws UsageError where
/// no backend serves buffers of the device.
class Engine final : public Subject {
 public:
  explicit Engine(DeviceKind device) : device_(device) {
    if (!backend().empty()) return;
    throw UsageError("--device " + std::string(to_string(device)) +
                     ": no backend serves such buffers here; `ronde info` says what there is");
  }

  std::string backend() const override { return runtime_.backend_name(device_); }
  void run(Request request) override { ronde::run(std::move(request)); }
  Stats stats() const override { return runtime_.stats(); }

  void quiesce() override {
    constexpr std::chrono::seconds kPatience{10};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!runtime_.asleep()) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw Error("rank " + std::to_string(runtime_.topology().rank) +
                  ": the engine, which has nothing to do, did not go to sleep within 10 s");
    }
  }

 private:
  const DeviceKind device_;
  Runtime& runtime_ = default_runtime();
};

}  // namespace

double percentile(Samples samples, double share) {
  const auto count = static_cast<double>(samples.size());
  const auto rank = static_cast<std::ptrdiff_t>(std::max(std::ceil(share * count), 1.0));
  const auto position = samples.begin() + rank - 1;
  std::nth_element(samples.begin(), position, samples.end());
  return *position;
}

double median(const Samples& samples) {
  return percentile(samples, 0.5);
}

std::vector<Samples> take_turns(Peers& peers, const std::vector<Contender>& contenders, int warmup,
                                int iterations) {
  using Clock = std::chrono::steady_clock;
  std::vector<Samples> all(contenders.size());
  for (int turn = 0; turn < warmup + iterations; ++turn) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t who = (i + static_cast<std::size_t>(turn)) % contenders.size();
      contenders[who].prepare();
      peers.barrier();
      const auto start = Clock::now();
      contenders[who].call();
      const std::chrono::duration<double, std::micro> time = Clock::now() - start;
      if (turn >= warmup) all[who].push_back(time.count());
    }
  }
  for (Samples& samples : all) peers.maximum(samples);
  return all;
}

Session::Session(const BenchOptions& options, GpuAccess access)
    : options_(options), access_(std::move(access)) {
  set_environment(options_);
  if (options_.raw) {
    auto raw = std::make_unique<RawSubject>();
    raw_ = raw.get();
    subject_ = std::move(raw);
  } else {
    ronde::init();
    subject_ = std::make_unique<Engine>(options_.device);
  }
  peers_ = make_peers(topology().local_size > topology().local_cores);
  if (options_.baseline) baseline_ = make_plain_mpi();
}

std::unique_ptr<Pages> Session::make_pages(std::size_t bytes) const {
  if (options_.device == DeviceKind::Cpu) return std::make_unique<HostPages>(bytes);
  return make_gpu_pages(access_, topology(), bytes);
}

std::size_t Session::rotate_bytes() const {
  return rotate_bytes_for(options_, topology().local_size);
}

void Session::open_json() {
  alike([this] {
    if (topology().rank != 0 || options_.json.empty()) return;
    json_.open(options_.json);
    if (!json_) {
      throw UsageError("--json: cannot write \"" + options_.json + "\": " + std::strerror(errno));
    }
  });
}

const Topology& Session::topology() const {
  return raw_ != nullptr ? raw_->topology() : ronde::topology();
}

std::string Session::first_of(const std::string& text) {
  for (const std::string& one : peers_->all_of(text)) {
    if (!one.empty()) return one;
  }
  return {};
}

void Session::alike(const std::function<void()>& action) {
  constexpr char kUsage = 'u';
  constexpr char kOther = 'o';
  std::string error;
  try {
    action();
  } catch (const UsageError& usage) {
    error = kUsage + std::string(usage.what());
  } catch (const std::exception& other) {
    error = kOther + ("rank " + std::to_string(topology().rank) + ": ") + other.what();
  }
  const std::string first = first_of(error);
  if (first.empty()) return;
  if (first[0] == kUsage) throw UsageError(first.substr(1));
  throw CommonError(first.substr(1));
}

Report Session::report() const {
  return Report(topology().rank == 0 ? &std::cout : nullptr);
}

std::string Session::description() const {
  return count_text(topology().size, "rank") + " on " + count_text(topology().hosts(), "host") +
         ", backend " + subject_->backend() + (options_.raw ? " without the coordinator" : "") +
         (options_.baseline && baseline_ == nullptr
              ? "; no plain MPI to compare with: mpiexec did not start these ranks"
              : "");
}

double Session::microseconds_of_plain_mpi() {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  Ring memory(kBytes);
  memory.split(kBytes, kBytes);
  const auto call = [&] {
    Request request;
    request.shape = {kBytes / sizeof(float)};
    request.input = request.output = memory.next();
    baseline_->run(std::move(request));
  };
  const auto quiesce = [&] { subject_->quiesce(); };
  return median(take_turns(*peers_, {{call, quiesce}}, 3, 21).front());
}

void Session::finish(Report& report) {
  if (baseline_ != nullptr) {
    const double microseconds = microseconds_of_plain_mpi();
    const std::string regime = microseconds < 250.0 ? "near" : "far";
    report.set_everywhere("regime", regime);
    report.say(regime + ": plain MPI_Allreduce of 1 MiB took " +
               std::to_string(std::lround(microseconds)) + " us (" +
               peers_->thread_level().value_or("no MPI") + ")");
  }
  alike([&] {
    if (!json_.is_open()) return;
    json_ << report.rows().dump(2) << '\n';
    json_.close();
    if (!json_) throw Error("--json: writing \"" + options_.json + "\" failed");
  });
}

void Session::close() {
  if (raw_ != nullptr) {
    raw_->close();
  } else {
    ronde::shutdown();
  }
}

}  // namespace ronde::tool
