#include <nanobind/nanobind.h>

#include <exception>
#include <system_error>

#include "fhbn/errors.hpp"
#include "fhbn/rdma/writer.hpp"
#include "python/bindings.hpp"

namespace nb = nanobind;

namespace lamina {

namespace {

// Raised as a Python error of the same meaning; what is made later is looked for first.
template <typename Error>
nb::object raised(nb::module_& m, const char* name, const char* doc, nb::handle bases) {
  nb::exception<Error> type(m, name, bases);
  type.attr("__doc__") = doc;
  return type;
}

}  // namespace

void bind_fhbn_errors(nb::module_& m) {
  const nb::object base = raised<fhbn::ChannelError>(m, "ChannelError", "A channel cannot do what was asked.",
                                                     PyExc_RuntimeError);
  raised<fhbn::PeerLost>(m, "PeerLostError", "The peer has ended without closing its end.", base);
  raised<fhbn::ChannelClosed>(m, "ChannelClosedError", "One of the ends was closed.", base);
  raised<fhbn::DeadlinePassed>(m, "ChannelTimeoutError",
                               "Nothing happened in time; the channel is as it was before the call.",
                               nb::make_tuple(base, nb::handle(PyExc_TimeoutError)));
  raised<fhbn::Corrupted>(m, "ChannelCorruptedError", "The peer has written what no peer of ours writes.",
                          base);
  raised<fhbn::rdma::NicError>(m, "NicError", "A NIC has given up; the channel can be opened again.", base);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      nb::object arguments = nb::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
}

}  // namespace lamina
