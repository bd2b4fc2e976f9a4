// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/session.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "ronde/ronde.h"
#include "tools/bench/engine_subject.h"
#include "tools/bench/gpu_pages.h"

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

std::string counted(int number, const char* noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace

Session::Session(const BenchOptions& options, GpuAccess access)
    : options_(options), access_(std::move(access)) {
  set_environment(options_);
  if (options_.raw) {
    raw_ = make_raw();
    subject_ = raw_.get();
  } else {
    ronde::init();
    engine_ = make_engine(options_.device);
    subject_ = engine_.get();
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
  const std::string first = peers_->first_of(error);
  if (first.empty()) return;
  if (first[0] == kUsage) throw UsageError(first.substr(1));
  throw CommonError(first.substr(1));
}

Report Session::report(std::span<const Column> columns) const {
  return Report(columns, topology().rank == 0 ? &std::cout : nullptr);
}

std::string Session::description() const {
  return counted(topology().size, "rank") + " on " + counted(topology().hosts(), "host") +
         ", backend " + subject_->backend() + (options_.raw ? " without the coordinator" : "");
}

void Session::write_json(const Report& report) {
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
