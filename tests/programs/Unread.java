import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;

/** A server as unread.py. Argument: port. */
public class Unread {
    public static void main(String[] arguments) throws IOException {
        var address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        HttpServer server = HttpServer.create(address, 128);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", Unread::serve);
        server.start();
    }

    private static void serve(HttpExchange exchange) throws IOException {
        String target = exchange.getRequestURI().toString();
        while (target.startsWith("/unread")) {
            LockSupport.park();
        }
        if (!target.startsWith("/early")) {
            exchange.getRequestBody().readAllBytes();
        }
        byte[] content = target.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(200, content.length);
        try (OutputStream body = exchange.getResponseBody()) {
            body.write(content);
        }
    }
}
