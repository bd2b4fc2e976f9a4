// SPDX-License-Identifier: Apache-2.0
// Where there is no prometheus-cpp.
#include "api/observe/live/metrics_server.h"
#include "ronde/error.h"

namespace ronde {

class MetricsServer::Impl {};

MetricsServer::MetricsServer(const Runtime&, int, ReadGpu) {
  throw Error(
      "this build has no prometheus-cpp and serves nothing: set a FILE.prom, or build Ronde where "
      "CMake finds prometheus-cpp");
}

MetricsServer::~MetricsServer() = default;

}  // namespace ronde
