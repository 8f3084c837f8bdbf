#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace lamina {

// The bytes of one argument, held while this lives.
class Buffer {
public:
  Buffer() = default;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::span<const std::byte> open(nanobind::handle from) {
    if (PyObject_CheckBuffer(from.ptr())) {
      if (PyObject_GetBuffer(from.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
      return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }
    if (nanobind::hasattr(from, "data_ptr")) return tensor(from);
    throw nanobind::type_error(
        "a message is made of contiguous arrays and tensors in host memory, and of bytes");
  }

  std::span<std::byte> open_writable(nanobind::handle from) {
    if (PyObject_GetBuffer(from.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nanobind::python_error();
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

private:
  // torch has no buffer protocol, and DLPack takes ten times as long as asking for what is needed. The
  // caller's reference keeps the memory.
  static std::span<const std::byte> tensor(nanobind::handle from) {
    if (!nanobind::cast<bool>(from.attr("is_cpu")))
      throw nanobind::type_error("a tensor to send must be in host memory");
    if (!nanobind::cast<bool>(from.attr("is_contiguous")())) {
      throw nanobind::value_error("a tensor to send must be contiguous");
    }
    // Views that say "negate" or "conjugate" and have not done it: the memory holds something else.
    if (nanobind::cast<bool>(from.attr("is_neg")()) || nanobind::cast<bool>(from.attr("is_conj")())) {
      throw nanobind::value_error(
          "a tensor to send must be resolved: resolve_neg() and resolve_conj() do that");
    }
    const auto address = nanobind::cast<std::uintptr_t>(from.attr("data_ptr")());
    const auto bytes = nanobind::cast<std::size_t>(from.attr("nbytes"));
    if (address == 0 && bytes != 0) throw nanobind::value_error("a tensor to send must have memory");
    return {reinterpret_cast<const std::byte*>(address), bytes};
  }

  Py_buffer view_{};
};

}  // namespace lamina
