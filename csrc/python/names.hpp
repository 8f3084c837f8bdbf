#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/rotation.hpp"
#include "core/router.hpp"
#include "core/scheduler.hpp"

// What Python calls by name.
namespace lamina {

template <typename Enum>
Enum named(const char* what, const std::string& name,
           std::initializer_list<std::pair<const char*, Enum>> names) {
  std::string known;
  for (const auto& [each, value] : names) {
    if (name == each) return value;
    known += (known.empty() ? "'" : ", '") + std::string(each) + "'";
  }
  if (const std::size_t last = known.rfind(", "); last != std::string::npos) known.replace(last, 2, " or ");
  throw std::invalid_argument(std::string(what) + " is " + known + ", not '" + name + "'");
}

inline Admission admission_named(const std::string& name) {
  return named<Admission>("admission", name, {{"reserve", Admission::kReserve}, {"grow", Admission::kGrow}});
}

inline Routing routing_named(const std::string& name) {
  return named<Routing>("router", name,
                        {{"round-robin", Routing::kRoundRobin},
                         {"least-requests", Routing::kLeastRequests},
                         {"least-kv", Routing::kLeastKv},
                         {"prefix", Routing::kPrefix},
                         {"fit", Routing::kFit}});
}

inline Pipelining pipelining_named(const std::string& name) {
  return named<Pipelining>("pipelining", name,
                           {{"serial", Pipelining::kSerial},
                            {"rotational", Pipelining::kRotational},
                            {"fixed", Pipelining::kFixed},
                            {"pingpong", Pipelining::kPingPong}});
}

}  // namespace lamina
