// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi.h"

#include "backends/mpi/mpi_backend.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/mpi/mpi_fabric.h"
#include "backends/mpi/mpi_transport.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Lower than that of shared memory, which is faster within a host.
constexpr int kPriority = 10;

}  // namespace

std::function<std::unique_ptr<Transport>()> mpi_transport_factory(const MpiOptions& options) {
  return [options] {
    return std::make_unique<mpi::MpiTransport>(mpi::MpiEnvironment::of_process(), options);
  };
}

ProgramMpi mpi_of_program() {
  return mpi::MpiEnvironment::of_process()->of_program();
}

std::unique_ptr<Transport> meet_over_mpi(const MpiOptions& options) {
  if (mpi::MpiEnvironment::of_process()->owns_mpi()) {
    throw UsageError(
        "ronde::init() has initialised MPI in this process, and calls it from a thread of Ronde's: "
        "initialise it before by MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...), or make the world "
        "from ranks of that of ronde::init()");
  }
  // This start has an MpiEnvironment of its own, as ronde::init() may have other ranks.
  const auto environment =
      std::make_shared<mpi::MpiEnvironment>(mpi::MpiApi{}, process_environment());
  return mpi::MpiExchange(environment, options, mpi::MpiUse::ToMeet).meet();
}

MakeFabric mpi_fabric_maker(const MpiOptions& options) {
  return [max_count = options.max_count](BackendContext& context) {
    auto environment = mpi::MpiEnvironment::of_process();
    MPI_Comm communicator = environment->duplicate(context.deadline);
    return std::make_unique<mpi::MpiFabric>(std::move(environment), communicator, max_count, true);
  };
}

MakeFabric mpi_fabric_maker_of_set(const MpiOptions& options) {
  return [max_count = options.max_count](BackendContext&) {
    auto environment = mpi::MpiEnvironment::of_process();
    MPI_Comm communicator = environment->message_communicator();
    if (communicator == MPI_COMM_NULL) {
      throw UsageError("the ranks were not started by MPI, which alone moves data between hosts");
    }
    return std::make_unique<mpi::MpiFabric>(std::move(environment), communicator, max_count, false);
  };
}

BackendFactory mpi_backend_factory(const MpiOptions& options) {
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = kPriority;
  factory.serves_sets = true;
  factory.create = [options](BackendContext& context) -> std::unique_ptr<Backend> {
    auto environment = mpi::MpiEnvironment::of_process();
    if (context.set == 0) {
      return std::make_unique<mpi::MpiBackend>(
          std::move(environment),
          mpi::MpiBackendOptions{.deadline = context.deadline,
                                 .max_count = options.max_count,
                                 .between_hosts = context.topology->hosts() > 1,
                                 .exact = options.exact});
    }
    return make_fabric_backend(mpi_fabric_maker_of_set(options)(context), context,
                               {.name = "mpi", .exact = options.exact}, false);
  };
  return factory;
}

std::string mpi_library_version() {
  return mpi::MpiEnvironment::of_process()->library_version();
}

}  // namespace ronde
