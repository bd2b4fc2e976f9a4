// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi.h"

#include "backends/mpi/mpi_backend.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/mpi/mpi_transport.h"
#include "backends/mpi/set_backend.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Below the priority of shared memory, which is faster within a host.
constexpr int kPriority = 10;

std::unique_ptr<Backend> make_set_backend(std::shared_ptr<mpi::MpiEnvironment> environment,
                                          const BackendContext& context, std::size_t max_count) {
  mpi::SetChannel channel;
  channel.communicator = environment->message_communicator();
  if (channel.communicator == MPI_COMM_NULL) {
    throw UsageError("the ranks were not started by MPI, which alone moves data between hosts");
  }
  const int largest = environment->largest_tag();
  if (context.set > static_cast<std::uint32_t>(largest)) {
    throw UsageError("over MPI there can be " + std::to_string(largest) +
                     " process sets, one after the other or at once; start with RONDE_CPU_BACKEND "
                     "unset where the ranks of a set share a host");
  }
  channel.environment = std::move(environment);
  channel.peers = context.ranks;
  channel.tag = static_cast<int>(context.set);
  channel.max_count = max_count;
  channel.between_hosts = context.topology->hosts() > 1;
  return std::make_unique<mpi::SetBackend>(std::move(channel), context.topology->rank);
}

}  // namespace

std::function<std::unique_ptr<Transport>()> mpi_transport_factory(const MpiOptions& options) {
  return [options] {
    return std::make_unique<mpi::MpiTransport>(mpi::MpiEnvironment::of_process(), options);
  };
}

BackendFactory mpi_backend_factory(const MpiOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = kPriority;
  factory.serves_sets = true;
  factory.create = [max_count = options.max_count,
                    exact = options.exact](BackendContext& context) -> std::unique_ptr<Backend> {
    auto environment = mpi::MpiEnvironment::of_process();
    if (context.set == 0) {
      return std::make_unique<mpi::MpiBackend>(
          std::move(environment),
          mpi::MpiBackendOptions{.deadline = context.deadline,
                                 .max_count = max_count,
                                 .between_hosts = context.topology->hosts() > 1,
                                 .exact = exact});
    }
    return make_set_backend(std::move(environment), context, max_count);
  };
  return factory;
}

std::string mpi_library_version() {
  return mpi::MpiEnvironment::of_process()->library_version();
}

}  // namespace ronde
