#include "core/router.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "python/arrays.hpp"
#include "python/bindings.hpp"
#include "python/names.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using Limits = std::pair<std::int64_t, std::int64_t>;

std::vector<Router::Instance> instances_of(const std::vector<Limits>& limits) {
  std::vector<Router::Instance> instances;
  for (const auto& [kv_tokens, max_requests] : limits) instances.push_back({kv_tokens, max_requests, 0});
  return instances;
}

void require_instance(const Router& router, int instance) {
  if (instance < 0 || instance >= router.instances()) throw std::out_of_range("no such instance");
}

}  // namespace

void bind_router(nb::module_& m) {
  nb::class_<Router>(
      m, "Router", nb::is_final(),
      R"(Which of several engines a request goes to: the definition that the virtual cluster goes by too.

It goes by what it has sent and by what has ended.)")
      .def(
          "__init__",
          [](Router* self, const std::string& router, const std::vector<Limits>& instances,
             bool global_queue) {
            new (self) Router(routing_named(router), instances_of(instances), global_queue);
          },
          "router"_a, "instances"_a, nb::kw_only(), "global_queue"_a = false,
          "`instances` are (KV tokens, most requests at once) of each.")
      .def(
          "route",
          [](Router& router, std::int64_t prompt, std::int64_t output, const Input<std::int64_t>& prefix,
             std::int64_t prefix_block_tokens) -> std::optional<int> {
            const int instance = router.route({prompt, output, span_of(prefix), prefix_block_tokens});
            return instance == Router::kNone ? std::nullopt : std::optional(instance);
          },
          "prompt"_a, "output"_a, "prefix"_a, "prefix_block_tokens"_a = 512,
          "Where a request goes, counted there from now on; None while no instance takes it.")
      .def(
          "route_to",
          [](Router& router, int instance, std::int64_t prompt, std::int64_t output) -> std::optional<int> {
            const int taken = router.route_to(instance, {prompt, output});
            return taken == Router::kNone ? std::nullopt : std::optional(taken);
          },
          "instance"_a, "prompt"_a, "output"_a,
          "The same where the caller has chosen, unless that one is closed.")
      .def(
          "left",
          [](Router& router, int instance, std::int64_t prompt, std::int64_t output) {
            require_instance(router, instance);
            router.left(instance, {prompt, output});
          },
          "instance"_a, "prompt"_a, "output"_a, "A request has ended there, or was taken away.")
      .def(
          "open",
          [](Router& router, int instance, bool open) {
            require_instance(router, instance);
            router.open(instance, open);
          },
          "instance"_a, "open"_a, "Whether an instance gets requests.")
      .def_prop_ro(
          "requests", [](const Router& router) { return array_of(router.requests()); },
          nb::rv_policy::automatic, "Of each instance.")
      .def_prop_ro(
          "kv_tokens", [](const Router& router) { return array_of(router.kv_tokens()); },
          nb::rv_policy::automatic, "What the requests of each instance may need at most.");
}

}  // namespace lamina
