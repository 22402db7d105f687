"""What the reader of ``extern "C"`` declarations sees, and what it must leave out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.inline import Parameter, parse_signatures


def types(source, name="f", **defines):
    return [(p.type, p.pointer) for p in parse_signatures(source, defines)[name].parameters]


@pytest.mark.parametrize(
    ("declared", "seen"),
    [
        ("const float* x", ("float", True)),
        ("float const *__restrict__ x", ("float", True)),
        ("double x[4]", ("double", True)),
        ("void* x", ("void", True)),
        ("float** x", ("void", True)),
        ("void (*x)(int, int)", ("void", True)),
        ("int64_t n", ("int64", False)),
        ("std::int64_t n", ("int64", False)),
        ("long long int n", ("int64", False)),
        ("unsigned long n", ("uint64", False)),
        ("unsigned n", ("uint32", False)),
        ("short int n", ("int16", False)),
        ("signed char n", ("int8", False)),
        ("const unsigned char* n", ("uint8", True)),
        ("std::size_t n", ("uint64", False)),
        ("bool n", ("bool", False)),
        ("at::BFloat16* n", ("bfloat16", True)),
        ("const _Float16* n", ("float16", True)),
        ("std::complex<float>* n", ("complex64", True)),
        ("float n = 1.0f", ("float", False)),
        ("float", ("float", False)),
        ("struct Unknown n", ("Unknown", False)),
    ],
)
def test_types_of_parameters(declared, seen):
    assert types(f'extern "C" void f({declared});') == [seen]


def test_names_count_and_return_type():
    signature = parse_signatures('extern "C" double f(const float* x, int64_t rows, float, int) { return 0; }')["f"]
    assert signature.returns == "double"
    assert [p.name for p in signature.parameters] == ["x", "rows", "arg2", "arg3"]
    assert parse_signatures('extern "C" void f(void);')["f"].parameters == ()


def test_blocks_hold_several_functions_and_end_where_they_end():
    source = """
    extern "C" {
      struct Shape { int rows; int columns; };
      static int helper(int a) { return a > 1 ? helper(a - 1) : 0; }
      int table[2] = {1, 2};
      void f(float* x, int n) { for (int i = 0; i < n; i++) { x[i] = float(helper(i)); } }
      __attribute__((visibility("default"))) int g(double* y);
    }
    void outside(int n) {}
    template <typename T> void generic(T* x) {}
    """
    assert sorted(parse_signatures(source)) == ["f", "g"]


def test_comments_strings_and_raw_strings_declare_nothing():
    source = r"""
    // extern "C" void a(int);
    /* extern "C" void b(int); */
    const char* c = "extern \"C\" void c(int);";
    const char* d = R"x(extern "C" void d(int);)x";
    int big = 1'000'000; char quote = '"';
    extern "C" void f(int n);
    """
    assert list(parse_signatures(source)) == ["f"]


def test_aliases_macros_and_command_line_defines_are_followed():
    source = """
    #ifndef SCALAR
    #define SCALAR float
    #endif
    #define API extern "C" \\
        __attribute__((visibility("default")))
    typedef SCALAR scalar;
    using index = std::int64_t;
    typedef const double* handle;
    API void f(const scalar* x, index n, handle h);
    """
    assert types(source) == [("float", True), ("int64", False), ("double", True)]
    assert types(source, SCALAR="double")[0] == ("double", True)


def test_two_different_declarations_of_a_name_are_none():
    source = '#ifdef A\nextern "C" void f(int n);\n#else\nextern "C" void f(float n);\n#endif\n'
    assert parse_signatures(source) == {"f": None}
    same = parse_signatures('extern "C" void f(int n);\nextern "C" void f(int m) {}')
    assert same["f"].parameters == (Parameter("n", "int32", False),)


TOKENS = 'extern "C" { } ( ) ; , * < > [ ] int float f x = using typedef # " \' // [[ operator template &'


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS.split(), "\n", "#define f x"])))
def test_any_text_is_read_without_an_exception(words):
    parse_signatures(" ".join(words))
