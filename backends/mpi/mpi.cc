// SPDX-License-Identifier: Apache-2.0
#include "backends/mpi/mpi.h"

#include "backends/mpi/mpi_backend.h"
#include "backends/mpi/mpi_environment.h"
#include "backends/mpi/mpi_transport.h"
#include "backends/timeout.h"

namespace ronde {
namespace {

/// Above hosts' own memory in no case, above nothing else there is.
constexpr int kPriority = 10;

}  // namespace

std::function<std::unique_ptr<Transport>()> mpi_transport_factory(const MpiOptions& options) {
  const mpi::MpiTransportOptions transport_options = {
      .init_timeout = milliseconds_of(options.init_timeout_s),
      .host = options.host,
      .offer_loopback = options.offer_loopback};
  return [transport_options] {
    return std::make_unique<mpi::MpiTransport>(mpi::MpiEnvironment::of_process(),
                                               transport_options);
  };
}

BackendFactory mpi_backend_factory(const MpiOptions& options) {
  const mpi::MpiBackendOptions backend_options = {
      .init_timeout = milliseconds_of(options.init_timeout_s), .max_count = options.max_count};
  BackendFactory factory;
  factory.device = DeviceKind::Cpu;
  factory.priority = kPriority;
  factory.create = [backend_options](BackendContext&) {
    return std::make_unique<mpi::MpiBackend>(mpi::MpiEnvironment::of_process(), backend_options);
  };
  return factory;
}

std::string mpi_library_version() {
  return mpi::MpiEnvironment::of_process()->library_version();
}

bool mpi_available() {
  return !mpi::MpiEnvironment::of_process()->finalized();
}

}  // namespace ronde
