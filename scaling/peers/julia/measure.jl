# Compute and time a case in Julia. Each line of standard input is a request in JSON; the reply is one line of JSON.
#
#     julia --project=ENVIRONMENT --threads=N measure.jl SYSTEM
#
#     {"do": "prepare", ...}   prepares the derivative and computes it once  -> {"seconds": ...}, including compilation
#     {"do": "call"}           computes the derivative once                  -> {}
#     {"do": "result", "file"} writes the result of the last call to a file  -> {}
#     {"do": "sample", ...}    -> {"times": nanoseconds per evaluation, "evaluations": evaluations per sample}
#
# An error is {"error": the first line of its message}. Arrays are binary files. Julia is column-major, so that the axes of an
# array are those of NumPy in reverse order, with the points last. A result is (inputs, outputs, points) in Julia, which is
# (points, outputs, inputs) in NumPy.

if Sys.islinux()  # PR_SET_PDEATHSIG, SIGKILL: an orphaned process would disturb the next measurement
    ccall(:prctl, Cint, (Cint, Culong, Culong, Culong, Culong), 1, 9, 0, 0, 0)
end

using ADTypes: AutoForwardDiff, AutoReverseDiff
using BenchmarkTools
using Distributions: Poisson, logpdf
import JSON
import LinearAlgebra
import SpecialFunctions  # contains the rule of Enzyme for the logarithm of the gamma function

const SYSTEM = Symbol(ARGS[1])
const PACKAGES = Dict(
    :ForwardDiff => [:ForwardDiff],
    :ReverseDiff => [:ReverseDiff],
    :Zygote => [:Zygote],
    :Enzyme => [:Enzyme],
    :DifferentiationInterface => [:DifferentiationInterface, :ForwardDiff, :ReverseDiff],
)
for package in PACKAGES[SYSTEM]
    @eval import $package
end

# Workloads. `point` returns the function of point i, and the vector of the inputs to differentiate with respect to; `whole` returns those
# of the batch. Constants in a formula have the element type of the data, because a Float64 constant would promote the result.

square(x) = x * x

"Return exp(-(x + y - 2xy) / 2) by a matrix product: (n,), (m,) -> (n, m)."
function kernel(x, y, half)
    row, column = reshape(x, length(x), 1), reshape(y, 1, length(y))
    return exp.(-half .* (-2 .* (row * column) .+ (row .+ column)))
end

"Return exp(-(x + y - 2xy) / 2) without a matrix product: (1,), (m,) -> (m,)."
rowwise(x, y, half) = exp.(-half .* (-2 .* x .* y .+ (x .+ y)))

"Return exp(-|x - y|^2 / 2): (d,), (d, m), (1, d) -> (m,). Not every version of ReverseDiff supports sum(...; dims)."
squared(x, support, ones, half) = vec(exp.(-half .* (ones * square.(x .- support))))

"Return exp(-|x - y|^2 / 2) by a matrix product: (d,), (d, m), (m, d) -> (m,)."
squared_product(x, support, rows, half) = exp.(rows * x .- half .* (sum(square.(x)) .+ vec(sum(square.(support); dims=1))))

function point(::Val{:rbf}, case, inputs, i)
    x, support = inputs["x"][:, i], inputs["support"]
    half, y, rows, row = oftype(x[1], 0.5), vec(support), permutedims(support), ones(eltype(x), 1, length(x))
    if case.variant == "squared"
        case.formulation == "product" && return (z -> squared_product(z, support, rows, half), x)
        return (z -> squared(z, support, row, half), x)
    end
    case.formulation == "rowwise" && return (z -> rowwise(z, y, half), x)
    return (z -> vec(kernel(z, y, half)), x)
end

function point(::Val{:linear}, case, inputs, i)
    W, x = inputs["W"], inputs["X"][:, i]  # (o, p), (p,)
    (o, p), w = size(W), length(W)
    case.names == ["W"] && return (z -> reshape(z, o, p) * x, vec(W))
    case.names == ["X"] && return (z -> W * z, x)
    case.names == ["W", "X"] && return (z -> reshape(z[1:w], o, p) * z[(w + 1):(w + p)], vcat(vec(W), x))
    return (z -> reshape(z[(p + 1):(p + w)], o, p) * z[1:p], vcat(x, vec(W)))
end

"Return d minus its least-squares fit by a Gaussian with center m: (21,), (1,) -> (21,). inner: the dot product to use."
function residual(d, m, grid, width, inner)
    f = exp.(-width .* square.(grid .- m))
    return d .- (inner(d, f) / inner(f, f)) .* f
end

dot_as_sum(a, b) = sum(a .* b)

function point(::Val{:residual}, case, inputs, i)
    d, m = inputs["d"][:, i], inputs["m"][i:i]
    grid, width, n = collect(eltype(d), -10:10), oftype(d[1], 1.5), length(d)
    inner = case.formulation == "dot" ? LinearAlgebra.dot : dot_as_sum
    full(d, m) = residual(d, m, grid, width, inner)
    f = case.variant == "scalar" ? (d, m) -> sum(square.(full(d, m))) : full
    case.names == ["m"] && return (z -> f(d, z), m)
    case.names == ["d"] && return (z -> f(z, m), d)
    case.names == ["d", "m"] && return (z -> f(z[1:n], z[(n + 1):(n + 1)]), vcat(d, m))
    return (z -> f(z[2:(n + 1)], z[1:1]), vcat(m, d))
end

"Return log pmf(c; rate). In contrast, `type_broadcast` broadcasts the constructor of the distribution."
term(c, rate) = logpdf(Poisson(rate; check_args=false), c)

function loop(c, rates)
    total = zero(eltype(rates))
    for i in eachindex(c, rates)
        @inbounds total += term(c[i], rates[i])
    end
    return total
end

broadcasted(c, rates) = sum(term.(c, rates))
type_broadcast(c, rates) = sum(logpdf.(Poisson.(rates), c))
generator(c, rates) = sum(pair -> logpdf(Poisson(pair[2]), pair[1]), zip(c, rates))
# The expansion of ReverseDiff.@forward(term), because the macro is available only after ReverseDiff is loaded.
forward_inside(c, rates) = mapreduce(ReverseDiff.ForwardOptimize(term), +, c, rates)

function point(::Val{:poisson}, case, inputs, i)
    c = Int(inputs["c"][i])
    return (z -> term(c, z[1]), inputs["lam"][i:i])
end

function whole(::Val{:poisson}, case, inputs)
    c = Int.(inputs["c"])
    case.formulation == "loop" && return (z -> loop(c, z), inputs["lam"])
    case.formulation == "type_broadcast" && return (z -> type_broadcast(c, z), inputs["lam"])
    case.formulation == "generator" && return (z -> generator(c, z), inputs["lam"])
    case.formulation == "forward_inside" && return (z -> forward_inside(c, z), inputs["lam"])
    return (z -> broadcasted(c, z), inputs["lam"])
end

function whole(::Val{:linear}, case, inputs)
    W, X = inputs["W"], inputs["X"]  # (o, p), (p, points)
    o, p = size(W)
    return (z -> vec(reshape(z, o, p) * X), vec(W))
end

"Return the kernel matrix of all points, as the thread computes it. It is used for mode=value only."
function whole(::Val{:rbf}, case, inputs)
    x, y = vec(inputs["x"]), vec(inputs["support"])
    half = oftype(x[1], 0.5)
    return (z -> vec(kernel(y, z, half)), x)
end

# Differentiation systems. `ready` prepares the derivative of f at x, where y is f(x). It returns a function without arguments
# that returns the derivative: (outputs, inputs), or a vector or a number if one or both of these are 1.

ready(::Val, ::Val{:value}, f, x, y, jit) = () -> f(x)

function ready(::Val, ::Val{:finite_difference}, f, x, y, jit)
    out, step = similar(x, length(y), length(x)), oftype(x[1], 1e-6)
    function differences()
        unshifted = f(x)
        for k in eachindex(x)
            shifted = copy(x)
            shifted[k] += step
            out[:, k] .= (f(shifted) .- unshifted) ./ step
        end
        return out
    end
    return differences
end

function ready(::Val{:ForwardDiff}, ::Val{:jacfwd}, f, x, y, jit)
    length(x) == 1 && return () -> ForwardDiff.derivative(t -> f([t]), x[1])
    return forward_chunks(f, x, y)
end

function forward_chunks(f, x, y::Number)
    out, settings = similar(x), ForwardDiff.GradientConfig(f, x)
    return () -> ForwardDiff.gradient!(out, f, x, settings)
end

function forward_chunks(f, x, y)
    out, settings = similar(x, length(y), length(x)), ForwardDiff.JacobianConfig(f, x)
    return () -> ForwardDiff.jacobian!(out, f, x, settings)
end

function ready(::Val{:ReverseDiff}, ::Val{:jacrev}, f, x, y::Number, jit)
    out = similar(x)
    if jit
        tape = ReverseDiff.compile(ReverseDiff.GradientTape(f, x))
        return () -> ReverseDiff.gradient!(out, tape, x)
    end
    settings = ReverseDiff.GradientConfig(x)
    return () -> ReverseDiff.gradient!(out, f, x, settings)
end

function ready(::Val{:ReverseDiff}, ::Val{:jacrev}, f, x, y, jit)
    out = similar(x, length(y), length(x))
    if jit
        tape = ReverseDiff.compile(ReverseDiff.JacobianTape(f, x))
        return () -> ReverseDiff.jacobian!(out, tape, x)
    end
    settings = ReverseDiff.JacobianConfig(x)
    return () -> ReverseDiff.jacobian!(out, f, x, settings)
end

ready(::Val{:Zygote}, ::Val{:jacrev}, f, x, y::Number, jit) = () -> Zygote.gradient(f, x)[1]
ready(::Val{:Zygote}, ::Val{:jacrev}, f, x, y, jit) = () -> Zygote.jacobian(f, x)[1]

"Compute one column at a time. Enzyme's own jacobian unrolls all columns, and compiles very slowly for hundreds of them."
function ready(::Val{:Enzyme}, ::Val{:jacfwd}, f, x, y, jit)
    out, seed = similar(x, length(y), length(x)), zero(x)
    mode = Enzyme.set_runtime_activity(Enzyme.Forward)
    function columns()
        for k in eachindex(x)
            seed[k] = 1
            out[:, k] .= Enzyme.autodiff(mode, Enzyme.Const(f), Enzyme.Duplicated, Enzyme.Duplicated(x, seed))[1]
            seed[k] = 0
        end
        return out
    end
    return columns
end

function ready(::Val{:Enzyme}, ::Val{:jacrev}, f, x, y::Number, jit)
    out, mode = similar(x), Enzyme.set_runtime_activity(Enzyme.Reverse)
    function gradient()
        fill!(out, 0)
        Enzyme.autodiff(mode, Enzyme.Const(f), Enzyme.Active, Enzyme.Duplicated(x, out))
        return out
    end
    return gradient
end

"Write f(x) into y, because in reverse mode Enzyme reads the seed of an array result from the shadow of y."
into!(y, f, x) = (copyto!(y, f(x)); nothing)

function ready(::Val{:Enzyme}, ::Val{:jacrev}, f, x, y, jit)
    out, value, seed, row = similar(x, length(y), length(x)), similar(y), zero(y), zero(x)
    mode = Enzyme.set_runtime_activity(Enzyme.Reverse)
    function rows()
        for o in eachindex(y)
            fill!(row, 0)
            fill!(seed, 0)
            seed[o] = 1
            Enzyme.autodiff(
                mode, Enzyme.Const(into!), Enzyme.Const,
                Enzyme.Duplicated(value, seed), Enzyme.Const(f), Enzyme.Duplicated(x, row),
            )
            out[o, :] .= row
        end
        return out
    end
    return rows
end

backend(::Val{:jacfwd}, jit) = AutoForwardDiff()
backend(::Val{:jacrev}, jit) = AutoReverseDiff(; compile=jit)

function ready(::Val{:DifferentiationInterface}, mode::Union{Val{:jacfwd},Val{:jacrev}}, f, x, y::Number, jit)
    out, by = similar(x), backend(mode, jit)
    prepared = DifferentiationInterface.prepare_gradient(f, by, x)
    return () -> DifferentiationInterface.gradient!(f, out, prepared, by, x)
end

function ready(::Val{:DifferentiationInterface}, mode::Union{Val{:jacfwd},Val{:jacrev}}, f, x, y, jit)
    out, by = similar(x, length(y), length(x)), backend(mode, jit)
    prepared = DifferentiationInterface.prepare_jacobian(f, by, x)
    return () -> DifferentiationInterface.jacobian!(f, out, prepared, by, x)
end

# Assembly of the result from the derivatives of points.

"Write the derivative of point i into the result (inputs, outputs, points), summed over outputs if `summed`."
store!(result, i, slope::Number, outputs, summed) = (result[1, 1, i] = slope; nothing)

function store!(result, i, slope, outputs, summed)
    rows = reshape(slope, outputs, :)
    for k in axes(rows, 2)
        if summed
            result[k, 1, i] = sum(view(rows, :, k))
        else
            result[k, :, i] .= view(rows, :, k)
        end
    end
    return nothing
end

"Write the derivative of a batch into the result. If `summed`, it is (points * outputs, inputs) with outputs contiguous."
function store_whole!(result, slope, outputs, summed)
    if summed
        for i in axes(result, 3), k in axes(result, 1)
            result[k, 1, i] = sum(view(slope, ((i - 1) * outputs + 1):(i * outputs), k))
        end
    else
        result[:] .= slope isa Number ? slope : vec(slope)
    end
    return nothing
end

function points!(result, jobs, outputs, summed)
    if Threads.nthreads() > 1
        Threads.@threads for i in eachindex(jobs)
            store!(result, i, jobs[i](), outputs, summed)
        end
    else
        for i in eachindex(jobs)
            store!(result, i, jobs[i](), outputs, summed)
        end
    end
    return nothing
end

function job(request, f, x)
    return ready(Val(SYSTEM), Val(Symbol(request["mode"])), f, x, f(x), request["jit"])
end

"Return a function without arguments that computes the result, and the array of the result."
function prepare(request)
    inputs = Dict(array["name"] => load(array) for array in request["arrays"])
    case = (; names=String.(request["names"]), variant=request["variant"], formulation=request["formulation"])
    kind = Val(Symbol(request["workload"]))
    result = zeros(request["dtype"] == "float32" ? Float32 : Float64, reverse(Int.(request["shape"]))...)
    outputs, summed = Int(request["outputs"]), request["summed"]
    if request["whole"]
        one = job(request, whole(kind, case, inputs)...)
        return (() -> store_whole!(result, one(), outputs, summed), result)
    end
    # A configuration or tape for each point, because it contains constants of the point and threads must not share it.
    jobs = [job(request, point(kind, case, inputs, i)...) for i in 1:size(result, 3)]
    return (() -> points!(result, jobs, outputs, summed), result)
end

const TYPES = Dict("float32" => Float32, "float64" => Float64, "int32" => Int32)

function load(array)
    shape = reverse(Int.(array["shape"]))
    return read!(array["file"], Array{TYPES[array["type"]]}(undef, shape...))
end

"Return at least `least` samples of BenchmarkTools. It is tuned to repeat a short evaluation within a sample."
function sample(compute, request)
    benchmark = @benchmarkable $compute()
    benchmark.params.samples = Int(request["most"])
    benchmark.params.seconds = max(Float64(request["seconds"]), 1e-3)
    tune!(benchmark)
    times = run(benchmark).times
    least = Int(request["least"])
    while length(times) < least
        append!(times, run(benchmark; samples=least - length(times), seconds=1e6).times)
    end
    return Dict("times" => times, "evaluations" => benchmark.params.evals)
end

function handle(request, state)
    what = request["do"]
    if what == "prepare"
        began = time_ns()
        state[] = prepare(request)
        state[][1]()
        return Dict("seconds" => (time_ns() - began) / 1e9)
    end
    compute, result = state[]
    what == "sample" && return sample(compute, request)
    what == "result" ? write(request["file"], result) : compute()
    return Dict{String,Any}()
end

function main()
    LinearAlgebra.BLAS.set_num_threads(1)  # the points are divided among threads
    state = Ref{Any}()
    for line in eachline(stdin)
        reply = try
            handle(JSON.parse(line), state)
        catch error
            Dict("error" => first(split(sprint(showerror, error), '\n')))
        end
        println(stdout, JSON.json(reply))
        flush(stdout)
    end
    return nothing
end

main()
