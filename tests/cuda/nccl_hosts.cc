// SPDX-License-Identifier: Apache-2.0
#include "nccl_hosts.h"

namespace ronde::test {
namespace {

constexpr const char* kBackend = "hosts";

}  // namespace

NcclHosts::NcclHosts(const std::vector<int>& host_of, const FakeNccl::Options& nccl,
                     unsigned disorder)
    : machine(static_cast<int>(host_of.size()), nccl,
              {.devices = static_cast<int>(host_of.size()), .disorder = disorder}),
      host_of_(host_of) {
  machine.config.cpu_backend = kBackend;
  machine.config.fusion_bytes = 16384;
  machine.options.hierarchical = true;
  machine.options.hierarchical_above_bytes = 0;
  machine.options.staged_piece_bytes = 256;
  begin_job();
}

void NcclHosts::begin_job() {
  hosts_ = std::make_unique<HostsBackends>(host_of_);
  faults_.clear();
  for (int rank = 0; rank < size(); ++rank) faults_.push_back(std::make_shared<Faults>());
}

RuntimeOptions NcclHosts::runtime_options(int rank) {
  RuntimeOptions options = machine.runtime_options(hosts_->group(), rank);
  options.backends[kBackend] =
      faulty_factory(hosts_->factory(), faults_[static_cast<std::size_t>(rank)]);
  return options;
}

void NcclHosts::run(const std::function<void(int rank, Runtime& runtime)>& body) {
  run_ranks(size(), [&](int rank) {
    Runtime runtime(runtime_options(rank));
    body(rank, runtime);
    runtime.shutdown();
  });
  machine.check_clean();
  begin_job();
}

void NcclHosts::run_to_its_death(const std::function<void(int rank, Runtime& runtime)>& body) {
  run_ranks(size(), [&](int rank) {
    Runtime runtime(runtime_options(rank));
    body(rank, runtime);
  });
  begin_job();
}

}  // namespace ronde::test
